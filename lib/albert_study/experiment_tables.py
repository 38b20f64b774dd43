"""The tables of single experiments as documents and pages show them, of the numbers that these have written to
results/: time and memory, pretraining, long sequences, masked words, details, faults."""

from pathlib import Path

import pandas as pd

from albert_lsh.tasks import find_task
from albert_study.compare import ARMS, in_order
from albert_study.growth import crossing_bounds
from albert_study.records import read_table, wide
from albert_study.show import Line, Table, columns, form, parts, table, text
from albert_study.tables import Named, commits, one_by_one, read

OBJECTIVES = {
    "mlm_loss": "loss, nats a masked token",
    "mlm_accuracy": "accuracy, masked tokens",
    "sop_accuracy": "accuracy, order",
}
LSH, PLAIN, REFORMER, ONE = "lsh", "plain-lsh", "reformer-pytorch", ", one round"
FASTER = ((LSH, REFORMER), (f"{LSH}, window, far field", REFORMER), (PLAIN, REFORMER), (PLAIN + ONE, REFORMER))
FASTER += ((PLAIN + ONE, REFORMER + ONE),)  # who is compared in speed: ours, theirs
VERSIONS = ("python", "torch", "transformers", "datasets", "huggingface-hub", "numpy", "pandas", "ipykernel")


def constant_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Constant answers that score highest, beside the original's LSH scores (bold where both are the same); who tells
    a text's twin from another; and how far intervals can be trusted."""
    if len(lines := read(root, "runs/constant-answers/constant-answers")):
        lines = lines.loc[lines.groupby(["task", "metric"], sort=False)["constant"].idxmax()]
        lines["digits"], lines["metric"] = (lines["original"] <= 1) + 2, lines["metric"].str.replace("_", " ")
        lines["between"] = lines["between"].where(lines["metric"].isin(["accuracy", "exact"]))
        cells = columns("always={answer}; right={right:,} of {examples:,}; its score={constant:s}")
        cells["the original's LSH"] = lambda line: "**{original:s}**" if line["same"] else "{original:s}"
        cells["LSH's lead, examples"] = "{between:0}"
        yield "constant-answers", table(lines, "{task}, {metric}", cells, note=f"{commits(lines).capitalize()}.")
    if len(lines := read(root, "runs/word-order/stsb/twins")):
        note = f"{lines['pairs'].iloc[0]} texts of STS-B, run by run; a coin has 50%. Attention: of the head and layer "
        note += f"that gives most, against an equal share. {commits(lines)}."
        arms = ["softmax", *in_order(set(lines["arm"]) - {"softmax"})]
        runs = pd.DataFrame(
            {"name": ARMS.get(arm, arm), "runs": lines[lines["arm"] == arm].sort_values("seed")} for arm in arms
        )
        cells = {
            "texts whose twin is valued higher": lambda line: one_by_one(line["runs"]["told_apart"], "%"),
            "attention of a token to its copy": lambda line: one_by_one(line["runs"]["weight_of_copies"], "1", " ×"),
        }
        yield "twins", table(runs, "{name}", cells, note=note)
    if len(lines := read(root, "tables/calibration")):
        ends = lines.groupby("seeds")[["covered", "found"]].agg(["min", "max"]).reset_index()
        ends.columns = ["seeds", "covered", "most_covered", "small", "most_small"]
        cells = columns("95 % intervals that hold the truth={covered:p} to {most_covered:%}")
        cells |= columns("p < 0.0025 by chance={small:p2} to {most_small:%2}")
        ratios = " to ".join(f"{end:g}" for end in (lines["ratio"].min(), lines["ratio"].max()))
        note = f"Simulated, nothing differs; of the mean's variance seeds give {ratios} times what examples give."
        yield "calibration", table(ends, "{seeds} seeds", cells, note=note)


def by_length(lines: pd.DataFrame, value: str, how: str, note: str, base: str = "") -> Table:
    """A row a case, a column a length: a value, or its ratio to that of a case."""
    if base:
        of_base = lines[lines["case"] == base].set_index("length")[value]
        lines = lines.assign(**{value: lines[value] / lines["length"].map(of_base)})
    cells, order = {"{length:,}": f"{{{value}:{how}}}"}, sorted(set(lines["case"]))
    return table(lines.sort_values("length", kind="stable"), "{case}", cells, "length", order, note)


def time_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Time of a forward and backward pass as a multiple of softmax's, by length; who is faster, and from where."""
    for kind in ("fp32", "bf16", "bf16-amx"):
        if (lines := read(root, f"efficiency/time-cpu-{kind}")).empty:
            continue
        lines = lines[lines["pass"] == "forward+backward"]
        note = f"{'; '.join(lines['device'].unique())}; {commits(lines)}."
        yield f"efficiency-time-{kind}", by_length(lines, "seconds", "2", note, "softmax")
        if kind == "fp32":
            bounds = crossing_bounds(lines).dropna().sort_values(["up_to", "above"]).reset_index(names="case")
            yield "efficiency-faster-from", table(bounds, "{case}", {"tokens": crossing}, note=note)
            seconds = lines.pivot(index="length", columns="case", values="seconds")
            pairs = {
                f"{ours} against {theirs}": seconds[theirs] / seconds[ours]
                for ours, theirs in FASTER
                if ours in seconds
            }
            speed = pd.DataFrame(pairs).rename_axis(columns="case").stack().rename("ratio").reset_index()
            yield "efficiency-speed", by_length(speed, "ratio", "1", note)


def crossing(line: Line) -> str:
    if line["above"] == 0:
        return "{up_to:,} or less"
    return "{up_to:,}" if line["above"] == line["up_to"] else "between {above:,} and {up_to:,}"


def efficiency_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Who chooses, memory, a training step, and what is kept of softmax's output."""
    if len(lines := read(root, "efficiency/choosing/time-cpu-fp32")):
        lines = lines[lines["pass"] == "forward+backward"]
        note = f"{lines['keys'].iloc[0]} keys per query; {'; '.join(lines['device'].unique())}; {commits(lines)}."
        yield "efficiency-choosing", by_length(lines, "seconds", "2", note, "softmax")
    if len(lines := read(root, "efficiency/memory-cpu-fp32")):
        lines = lines[lines["kind"] == "attention"].assign(mib=lines["bytes"] / 2**20)
        yield "efficiency-memory", by_length(lines, "mib", "0", f"MiB; {commits(lines)}.")
    if len(lines := read(root, "efficiency/step-cpu-fp32")):
        softmax = lines[lines["case"].isin(["softmax", "softmax, recomputed"])].sort_values("case").groupby("length")
        lines["ratio"] = lines["seconds"] / lines["length"].map(softmax["seconds"].first())
        yield "efficiency-step", by_length(lines, "ratio", "2", f"{commits(lines).capitalize()}.")
    if len(lines := read(root, "efficiency/quality-cpu-fp32")):
        cells = {"pairs": "{pairs:%}"}
        if "cost" in lines and lines["cost"].notna().any():  # older tables lack it
            lines["cost"] /= lines.loc[lines["case"] == "softmax", "cost"].iloc[0]
            cells["cost"] = "{cost:%}"
        cells |= columns("softmax's mass={mass:2}; error of the output={error:3}; seconds={seconds:2}")
        length, model, keys = lines[["length", "text_model", "keys"]].iloc[0]
        note = f"{length:,} tokens, {model}, {keys} keys per query; {commits(lines)}."
        yield "efficiency-quality", table(lines, "{case}", cells, note=note)


def pretraining_tables(root: Path, rows: pd.DataFrame) -> Named:
    """New models; what hashing costs on the same tokens; and a model gone on with under another attention."""
    lines, gaps = wide(rows[rows["kind"] == "pretrained"]), read(root, "tables/pretraining-gaps")
    if lines.empty:
        return
    lines["tokens"] /= 1e6
    lines["is_new"], is_first = lines["variant"].isna(), lines["split"] == "first weights"
    last, first = (lines[chosen & (lines["attention"] != "")] for chosen in (~is_first, is_first))
    new, began = last[last["is_new"]], first[first["is_new"]].assign(tokens=0.0, device=None)
    counted = lines.loc[lines["is_new"] & (lines["attention"] == ""), list(OBJECTIVES)].mean().to_frame().T
    shown = [
        new,
        began.assign(arm=began["arm"] + ", before the first step"),
        counted.assign(arm="counting pieces, or a coin"),
    ]
    cells = columns("pairs seen={pairs:%}; million tokens={tokens:1}")
    cells |= {title: f"{{{name}:3}}" for name, title in OBJECTIVES.items()}
    cells |= columns("tokens/s={tokens_per_second:0}; on={device}")
    yield "pretraining", table(pd.concat(shown), "{arm}", cells, note=f"{commits(new).capitalize()}.")
    if gaps.empty:
        return
    of_new = gaps[gaps["to"].isin(new["arm"])].assign(title=gaps["metric"].map(OBJECTIVES))
    note = f"Standard errors over {gaps['sequences'].max()} held-out sequences, paired."
    cells = columns("{title}={difference:+4} ± {standard_error:4}")
    yield "pretraining-gaps", table(of_new, "{from} → {to}", cells, "title", note=note)
    of_loss = gaps[gaps["metric"] == "mlm_loss"].rename(columns={"to": "arm"})
    gone_on = last[~last["is_new"]].join(first.set_index("record")[list(OBJECTIVES)].add_prefix("first_"), on="record")
    gone_on = gone_on.merge(of_loss, "left", "arm").sort_values("first_mlm_loss")
    if len(gone_on):
        cells = columns("pairs seen={pairs:%}; softmax's mass={attention_mass:2}; loss, switched={first_mlm_loss:3}")
        cells |= columns("loss, trained on={mlm_loss:3} ({difference:+3} ± {standard_error:3})")
        cells |= columns("order, switched={first_sop_accuracy:3}; order, trained on={sop_accuracy:3}")
        begun, steps, rate = gone_on[["variant", "steps", "learning_rate"]].iloc[0]
        note = f"From {begun}, {steps:.0f} steps, learning rate {rate}; {commits(gone_on)}."
        yield "pretraining-continued", table(gone_on, "{attention}", cells, note=note)


def long_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Models trained on long sequences; in brackets, or in columns of their own, what is published."""
    if len(lines := read(root, "long_range/duplication")):
        lines["is_papers"] = lines["evaluated"].str.match("full|LSH")
        for (length, is_papers), models in lines.groupby(["max_length", "is_papers"]):
            chance, steps, shorter = models[["chance", "steps", "shorter"]].iloc[0]
            note = f"{length:,} tokens; chance {form(chance, '%1')}"
            if is_papers:
                cells = columns("steps={steps}; seconds={seconds:0}; {evaluated}={accuracy:%1} ({published:%1})")
                note += f". Shorter than published: {shorter}."
                yield f"duplication-{length}", table(models, "{label}", cells, "evaluated", note=note)
            else:
                models = models.sort_values("label", key=lambda label: label != "softmax", kind="stable")
                cells, note = columns("cost={evaluated_cost:%}; {label}={accuracy:%1}"), f"{note}; {steps} steps."
                yield f"duplication-{length}-keys", table(models, "{evaluated}", cells, "label", note=note)
    for task in ("listops", "text"):
        if len(lines := read(root, f"long_range/{task}")):
            cells = columns("pairs={attended:%}; accuracy={accuracy:%1}; arena={arena:%2}; re-run={rerun:%2}")
            first = lines.iloc[0]
            note = f"{first['max_length']:,} tokens; majority class {form(first['majority'], '%1')}, chance "
            note += f"{form(first['chance'], '%1')}; {first['test_examples']:,} test examples. "
            note += f"Shorter than published: {first['shorter']}."
            yield task, table(lines, "{label}", cells | columns("steps={steps}; seconds={seconds:0}"), note=note)


def masked_tables(root: Path, rows: pd.DataFrame) -> Named:
    """By variant and length how the loss of a masked word changes, and the full cost, a table a study and share; and
    with an attention in one pass alone, and in all others."""
    masked = wide(rows[rows["kind"] == "masked words"])
    for study in ("masked-words", "lsh-choice"):
        lines = masked[masked["study"] == study].sort_values("length", kind="stable")
        if lines.empty:
            continue
        per = ", ".join(
            f"{loss:.2f} at {n:.0f} tokens" for n, loss in lines.groupby("length")["softmax_loss"].first().items()
        )
        for share in sorted(lines["share"].dropna().unique(), reverse=True):
            own = lines[lines["share"].isna() | (lines["share"] == share)]
            own = own.assign(error=2 * own["standard_error"])
            order = own[own["length"] == own["length"].max()].sort_values("change")["variant"]
            cells = columns("{length:.0f} tokens={difference:+2} ± {error:2}; {length:.0f} either way={change:2}")
            cells |= columns("{length:.0f} cost={cost:%}")
            note = f"Loss of a masked word, in nats above softmax's ({per}), ± two standard errors over "
            note += "paragraphs; how much a word's loss changes either way; full cost. "
            note += f"{form(share, '%')} of the pairs where there is a choice. {own['model'].iloc[0]}, {commits(own)}."
            yield f"{study}-{100 * share:.0f}", table(own, "{variant}", cells, "length", order, note, "variant")
    if len(lines := wide(rows[rows["kind"] == "passes"])):
        lines["error"], lines["pass"] = (
            2 * lines["standard_error"],
            lines["variant"].str.extract(r"(\d+)")[0].astype(float),
        )
        lines["where"] = (
            lines["variant"].str.startswith("all").map({True: "in all others", False: "in this pass alone"})
        )
        whole, single = lines[lines["pass"].isna()].iloc[0], lines.dropna(subset="pass").sort_values("pass")
        note = (
            f"{whole['attention']} in some of a model's {single['pass'].max():.0f} passes, softmax in the others: loss "
        )
        note += f"of a masked word, nothing trained, in nats above softmax's ({form(whole['softmax_loss'], '2')}, "
        note += f"{whole['length']:.0f} tokens), ± two standard errors over paragraphs; how much a word's loss changes "
        note += (
            f"either way. In all passes: {text(parts('{difference:+2} ± {error:2}, either way {change:2}', whole))}. "
        )
        note += f"{form(whole['share'], '%')} of the pairs. {whole['model']}, {commits(lines)}."
        cells = columns("{where}={difference:+2} ± {error:2}; {where}, either way={change:2}")
        yield "masked-words-depths", table(single, "{pass:0}", cells, "where", note=note, corner="pass")


def detail_tables(root: Path, rows: pd.DataFrame) -> Named:
    """By group of examples how many more answers an arm changes than another softmax model does; and how much its
    answers gain or lose."""
    for path in sorted((root / "results/runs/details").glob("*.csv")):
        lines, task = read_table(path), find_task(path.stem.split("-", 1)[1])
        end = f" 95 % intervals over examples. Study {lines['study'].iloc[0]}, {task.name}, {commits(lines)}."
        differ = "Answers that differ from those of another softmax model, and how many more do under each arm, with"
        worth = f"Softmax's {'F1' if task.is_squad else 'accuracy'}, and how much higher it is under each arm, with"
        if task.is_regression:
            differ = (
                "How far answers lie from those of another softmax model, and how much farther under each arm, with"
            )
            worth = "How far softmax's answers lie from the gold ones (minus), and how much nearer under each arm, with"
        hows = ("2", "2") if task.is_regression else ("%1", "p1") if task.is_squad else ("%", "%")
        names = {"": ("above", "low", "high"), "-worth": ("gained", "gained_low", "gained_high")}
        softmax = {"": "two softmax models={null:u}", "-worth": "softmax={worth:u}"}
        for (name, (mean, low, high)), note, how in zip(names.items(), (differ, worth), hows, strict=True):
            known = lines[[low, high]].where(lines[low] < lines[high])  # where all examples are alike there is none
            own = lines.assign(mean=lines[mean], low=known[low], high=known[high])
            spec = f"examples={{examples:0}}; {softmax[name]}; {{arm}}={{mean:u}} ({{low:e}} to {{high:e}})"
            cells = columns(spec.replace(":u", f":{how}").replace(":e", f":{how.replace('%', 'p')}"))
            yield f"details-{path.stem}{name}", table(own, "{feature}: {group}", cells, "arm", note=note + end)


def reliability_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Faults by kind; how each notebook ended in each environment, and what that is."""
    if len(lines := read(root, "reliability/faults")):
        named, resumed = lines["message"].notna(), lines["outcome"].str.startswith("went on after")
        differ, broken = lines["difference"].fillna(0) != 0, lines["outcome"].str.startswith("BROKEN")
        told = {"faults": 1, "failed or warned, and named": named, "resumed at a checkpoint": resumed}
        counts = (
            lines[["kind"]]
            .assign(**told, **{"scores differ": differ, "broken": broken})
            .groupby("kind", sort=False)
            .sum()
        )
        counts.loc["all"] = counts.sum()
        yield "faults", table(counts.reset_index(), "{kind}", {name: f"{{{name}}}" for name in counts}, corner="kind")
    if len(lines := read(root, "reliability/colab")):
        lines = lines.sort_values(["environment", "notebook"])
        yield "colab", table(lines, "{notebook}", columns("{environment}={outcome}"), "environment", corner="notebook")
        names = [*VERSIONS, "added", "replaced", "commit"]
        tall = (
            lines.assign(commit=lines["commit"].str[:10])
            .melt("environment", names)
            .astype({"value": object})
            .fillna("")
        )
        groups = tall.groupby(["environment", "variable"], sort=False)["value"]
        values = groups.agg(lambda values: ", ".join(dict.fromkeys(values)) or "none").reset_index()
        yield "colab-versions", table(values, "{variable}", columns("{environment}={value}"), "environment", names)


COMMON = (constant_tables, time_tables, efficiency_tables, pretraining_tables, long_tables, masked_tables)
COMMON += (detail_tables, reliability_tables)
