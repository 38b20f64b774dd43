# make study                the embedded study, from runs to report, offline
# make study STUDY=original another one (see studies/)
# make reproduce RUN=<study/task/model/arm/seed>   one run of results/runs again, beside its record
# make test                 style, types, tests
PYTHON ?= python3
STUDY ?= mini
BIN := .venv/bin

# make bench                time and memory of the attentions (two hours and more), as studies/efficiency.yaml asks
# make report               report, poster and summary from results/; a study's own is report/build/<study>.pdf
# make recompute            all tables, figures and pages from saved predictions alone, in two minutes
# make site                 report/results.html, the page to explore, from results/
# make docs                 docs/api/, pages on the library's public names
# make faults               more than 100 faults, for hours: runs and studies killed and damaged
# make colab                every notebook in what Colab preinstalls (docs/running.md)
# make install              what the others begin with: .venv, with the locked versions
# make format               rewrite style
# make lock                 write the versions that are installed, with hashes and licences (uv)
# make refresh              copy tables and the repository's address to where they are shown
.PHONY: study reproduce test bench faults colab report recompute site docs install format lock refresh

study: install
	@mkdir -p logs && echo "study $(STUDY): looking at what there is"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --cores all --config study='$(STUDY)' 2>> logs/snakemake.log \
	    || { echo "not all is made; \`make study STUDY=$(STUDY)\` goes on where it was (more in logs/snakemake.log)"; exit 1; }

reproduce: install
	@$(BIN)/python -m albert_study.reproduce '$(RUN)'

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q

bench: install
	OMP_NUM_THREADS=1 $(BIN)/python -m albert_study.execute efficiency fp32

faults: install
	@mkdir -p logs
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults.py | tee logs/faults.csv
	@! grep -q BROKEN logs/faults.csv

colab: install
	OMP_NUM_THREADS=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/colab.py

report: install
	$(BIN)/python -m albert_study.report

recompute: install
	OMP_NUM_THREADS=1 $(BIN)/python -m albert_study.compare
	$(BIN)/python -m albert_study.figures
	$(BIN)/python benchmarks/frontier.py draw
	$(BIN)/python tools/refresh.py
	$(BIN)/python -m albert_study.report
	$(BIN)/python -m albert_study.explore

site: install
	$(BIN)/python -m albert_study.explore

docs: install
	$(BIN)/python tools/api.py docs/api

install: .venv/installed

.venv/installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint requirements.lock --editable '.[study,dev]'
	touch $@

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The exact versions of what is installed now. Plain versions, without a local part such as +cpu. And, by uv, the same
# versions with the hashes of their files: torch with what it brings for GPUs, and all others. And everybody's licence.
HASHED := uv pip compile --quiet --no-annotate --no-header --generate-hashes --universal --python-version 3.11.7 \
	--constraint requirements.lock
OF_TORCH = $$(grep -oE '^(torch|triton|nvidia|cuda)[a-z0-9-]*' tools/locked/torch.txt | sed 's/^/--no-emit-package /')

lock:
	$(BIN)/pip list --format=freeze --exclude-editable --exclude pip --exclude setuptools | sed 's/+[a-z0-9.]*$$//' > requirements.lock
	echo torch | $(HASHED) --output-file tools/locked/torch.txt -
	$(HASHED) --all-extras $(OF_TORCH) --output-file tools/locked/packages.txt pyproject.toml
	$(BIN)/python tools/licences.py > tools/locked/licences.md

refresh:
	$(BIN)/python tools/refresh.py
