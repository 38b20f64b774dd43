"""The tables of single experiments, of the numbers that these have written to results/: time and memory, pretraining,
long sequences, masked words, faults."""

from pathlib import Path
from typing import Any

import pandas as pd

from albert_study.experiments.collapse import CLS, MEAN, TOKENS
from albert_study.experiments.efficiency import crossing_bounds
from albert_study.experiments.words import LOSSES, ORIGINAL, beside_the_original
from albert_study.names import ARMS, METRICS, RUNGS, TITLES, in_order
from albert_study.records import read, wide
from albert_study.show import Line
from albert_study.tables.studies import Named, commits, one_by_one, shown

OBJECTIVES = {"mlm_loss": "loss, nats a masked token", "mlm_accuracy": "accuracy, masked tokens"}
OBJECTIVES |= {"sop_accuracy": "accuracy, order"}
SAME = ("model", "task", "texts", "length", "commit")  # in all rows of a table
LSH, REFORMER, ONE = "lsh", "reformer-pytorch", ", one round"
# In speed: ours against theirs.
FASTER = [("key-clusters", REFORMER), (LSH, REFORMER), (LSH + ONE, REFORMER), (LSH + ONE, REFORMER + ONE)]
ARENA = "pairs={attended:%}; accuracy={accuracy:%1}; arena={arena:%2}; re-run={rerun:%2}; steps={steps}; "
ARENA += "seconds={seconds:0}"
ARENA_NOTE = "{max_length:,} tokens; majority class {majority:%1}, chance {chance:%1}; {test_examples:,} test "
ARENA_NOTE += "examples. Shorter than published: {shorter}."
VERSIONS = ("python", "torch", "transformers", "datasets", "huggingface-hub", "numpy", "pandas", "ipykernel")


def measured(root: Path, name: str) -> pd.DataFrame:
    """results/efficiency/<name>.csv: forward and backward passes, or of memory the attention alone; seconds divided by
    those of softmax at the same length (recomputed, where that alone was measured)."""
    lines = read(root, f"efficiency/{name}")
    for column, chosen in (("pass", "forward+backward"), ("kind", "attention")):
        lines = lines[lines[column] == chosen] if column in lines else lines
    if "seconds" in lines:
        softmax = lines[lines["case"].isin(["softmax", "softmax, recomputed"])].sort_values("case")
        of_softmax = softmax.groupby("length")["seconds"].first()
        lines = lines.assign(seconds=lines["seconds"] / lines["length"].map(of_softmax))
    return lines.assign(mib=lines["bytes"] / 2**20) if "bytes" in lines else lines


def time_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Time of a forward and backward pass as a multiple of softmax's, by length; who is faster, and from where; time at
    an eighth of the pairs, memory, and a training step."""
    note, ratio, by_length = "{devices}; {commits}.", "{length:,}={seconds:2}", {"across": "length"}
    for kind in ("fp32", "bf16"):
        lines = measured(root, f"time-cpu-{kind}")
        yield from shown(f"efficiency-time-{kind}", lines, "{case}", ratio, note, **by_length)
    if len(lines := read(root, "efficiency/time-cpu-fp32")):
        lines = lines[lines["pass"] == "forward+backward"]
        bounds = crossing_bounds(lines).dropna().sort_values(["up_to", "above"]).reset_index(names="case")
        of_times = f"{'; '.join(lines['device'].unique())}; {commits(lines)}."
        yield from shown("efficiency-faster-from", bounds, "{case}", {"tokens": crossing}, of_times)
        seconds = lines.pivot(index="length", columns="case", values="seconds")
        speed = pd.DataFrame({f"{a} against {b}": seconds[b] / seconds[a] for a, b in FASTER if a in seconds})
        tall = speed.reset_index().melt("length", var_name="case", value_name="ratio").dropna()
        yield from shown("efficiency-speed", tall, "{case}", "{length:,}={ratio:1}", of_times, **by_length)
    eighths: list[pd.DataFrame] = []
    for folder in ("eighth", "eighth-intel", "eighth-avx2"):
        if len(lines := measured(root, f"{folder}/time-cpu-fp32")):
            processor = lines["device"].str.removeprefix("cpu, ").str.replace("(R)", "").str.replace(" Processor", "")
            eighths.append(lines[lines["case"] == "key-clusters"].assign(case="key-clusters, " + processor))
    if eighths:
        yield from shown("efficiency-eighth", pd.concat(eighths), "{case}", ratio, "{Commits}.", **by_length)
    for name, file, cell, of_lines in (
        ("efficiency-yoso", "yoso/time-cpu-fp32", ratio, note),
        ("efficiency-memory", "memory-cpu-fp32", "{length:,}={mib:0}", "MiB; {commits}."),
        ("efficiency-step", "step-cpu-fp32", ratio, "{Commits}."),
        ("whole-model", "whole-model", ratio + " ({mib:0} MiB)", "{model}, " + note),
        ("whole-model-intel", "whole-model-intel", ratio + " ({mib:0} MiB)", "{model}, " + note),
        ("whole-model-modernbert", "whole-model-modernbert", ratio + " ({mib:0} MiB)", "{model}, " + note),
    ):
        yield from shown(name, measured(root, file), "{case}", cell, of_lines, **by_length)


def crossing(line: Line) -> str:
    if line["above"] == 0:
        return "{up_to:,} or less"
    return "{up_to:,}" if line["above"] == line["up_to"] else "between {above:,} and {up_to:,}"


def twin_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Who tells a text's twin from another; and how far intervals can be trusted."""
    if len(lines := read(root, "runs/word-order/stsb/twins")):
        note = f"{lines['pairs'].iloc[0]} texts of STS-B, run by run; a coin has 50%. Attention: of the head and layer "
        note += f"that gives most, against an equal share. {commits(lines)}."
        arms = in_order(lines["arm"])
        cells = {"texts whose twin is valued higher": lambda line: one_by_one(line["told_apart"], "%")}
        cells["attention of a token to its copy"] = lambda line: one_by_one(line["weight_of_copies"], "1", " ×")
        each = lines.sort_values("seed").groupby("arm")[["told_apart", "weight_of_copies"]].agg(list).loc[arms]
        yield from shown("twins", each.assign(name=[ARMS.get(arm, arm) for arm in arms]), "{name}", cells, note)
    if len(lines := read(root, "tables/calibration")):
        ends = lines.groupby("seeds")[["covered", "found"]].agg(["min", "max"]).reset_index()
        ends.columns = pd.Index(["seeds", "covered", "most_covered", "small", "most_small"])
        spec = "95 % intervals that hold the truth={covered:p} to {most_covered:%}; "
        spec += "p < 0.0025 by chance={small:p2} to {most_small:%2}"
        ratios = " to ".join(f"{end:g}" for end in (lines["ratio"].min(), lines["ratio"].max()))
        note = f"Simulated, nothing differs; of the mean's variance seeds give {ratios} times what examples give."
        yield from shown("calibration", ends, "{seeds} seeds", spec, note)


def original_tables(root: Path, rows: pd.DataFrame) -> Named:
    """The original's runs, a row each: scores and losses, bold where they are a constant's, beside a constant's."""
    if (constants := read(root, "runs/constant-answers/losses")).empty:
        return
    numbers = beside_the_original(constants, root)
    numbers = numbers.merge(constants[["task", "split", "train_shares"]], on=["task", "split"])
    numbers = numbers[numbers["metric"] != "accuracy_f1_mean"].sort_values(
        "task", key=lambda tasks: tasks.map(list(TITLES).index), kind="stable"
    )
    by_run = numbers.groupby(["task", "arm", "model", "source", "note"], sort=False)
    lines = pd.DataFrame([numbers_of_run(run.to_dict("records")) for _, run in by_run])
    spec = "where={where}; score={score}; constant's={constant}; loss={loss}; constant's loss={least}"
    yield from shown("original", lines, "{run}", spec, f"Constants: {commits(constants)}.")


def numbers_of_run(numbers: list[dict[Any, Any]]) -> dict[str, str]:
    """The line of a run: what it is, where its file says so, and its scores and losses beside a constant's, as text."""
    first, cells = numbers[0], {name: list[str]() for name in ("score", "constant", "loss", "least")}
    names = METRICS | {"eval_loss": "", "train_loss": "training"}
    for number in numbers:
        is_loss, digits = number["metric"] in LOSSES, 2 if first["task"].startswith("squad") else 5
        theirs, constant = (f"{round(number[name], digits):g}" for name in ("original", "constant"))
        if number["metric"] == "eval_loss":
            constant += f" to {number['train_shares']:.{digits}f}"
        written = f"{names[number['metric']]} **{theirs}**" if number["same"] else f"{names[number['metric']]} {theirs}"
        cells["loss" if is_loss else "score"].append(written.strip())
        cells["least" if is_loss else "constant"].append(constant)
    arm = first["arm"].replace("reformer-", "whole block, ").replace("reformer", "whole block")
    run = f"{TITLES[first['task']]}, {arm}{', BERT' if first['model'].startswith('BERT') else ''}"
    where = f"{first['source'].removeprefix(f'{ORIGINAL}: ')}, {first['note'].split('; ')[0]}"
    return {"run": run, "where": where} | {name: ", ".join(texts) for name, texts in cells.items()}


TRAINED = {"trained": "MiniLM, trained on SST-2", "trained-albert": "Korean ALBERT, trained on NSMC"}  # by file


def collapse_tables(root: Path, rows: pd.DataFrame) -> Named:
    """The spread of texts and tokens after every second pass and the last, by block: the median of the draws, a table a
    model; and after training, of the ladder's models that are measured."""
    tables = {"collapse": "albert", "collapse-minilm": "minilm", "collapse-nano": "nano"}
    measured_tables = {name: read(root, f"runs/collapse/{file}") for name, file in tables.items()}
    for file, model in TRAINED.items():
        trained = {rung: read(root, f"runs/collapse/{file}-{arm}") for arm, rung in RUNGS.items()}
        of_rungs = [lines.assign(block=rung, model=model) for rung, lines in trained.items() if len(lines)]
        measured_tables[f"collapse-{file}"] = pd.concat(of_rungs) if of_rungs else pd.DataFrame()
    for name, lines in measured_tables.items():
        if lines.empty:
            continue
        last = lines["pass"].max()
        passes = [number for number in sorted(lines["pass"].unique()) if number % 2 or number == last]
        medians = lines.groupby(["block", "states", "pass"], sort=False)["spread"].median().unstack("pass")[passes]
        cells = medians.apply(lambda spreads: " ".join(map(spread_as_text, spreads)), axis=1)
        about = lines.groupby("block", sort=False).agg(**{name: (name, "first") for name in SAME})
        by_block = about.join(cells.unstack("states")).reset_index()
        note = (
            f"After passes {', '.join(map(str, passes))}. {{model}}; {{texts}} texts of {{task}}, {{length}} tokens; "
        )
        if (draws := lines["draw"].nunique()) > 1:
            note += f"with new projections the median of {draws} draws; "
        note += "{commits}."
        yield from shown(name, by_block, "{block}", {title: f"{{{title}}}" for title in (CLS, MEAN, TOKENS)}, note)


def spread_as_text(spread: float) -> str:
    """Three decimals, or one digit where there would be none; below a ten-thousandth only that."""
    if 0 < spread < 0.00005:
        return "<.0001"
    return (f"{spread:.3f}" if spread >= 0.00095 or spread == 0 else f"{spread:.4f}").removeprefix("0")


def pretraining_tables(root: Path, rows: pd.DataFrame) -> Named:
    """New models; what hashing costs on the same tokens; and a model gone on with under another attention."""
    lines, gaps = wide(rows[rows["kind"] == "pretrained"]), read(root, "tables/pretraining-gaps")
    if lines.empty:
        return
    lines["tokens"] /= 1e6
    lines["is_new"], is_first = lines["variant"].isna(), lines["split"] == "first weights"
    last, first = (lines[chosen & (lines["attention"] != "")] for chosen in (~is_first, is_first))
    new = last[last["is_new"]]
    spec = "pairs seen={pairs:%}; million tokens={tokens:1}; "
    spec += "; ".join(f"{title}={{{name}:3}}" for name, title in OBJECTIVES.items())
    spec += "; tokens/s={tokens_per_second:0}; on={device}"
    for size, of_size in new.groupby("model", sort=False):
        began = first[first["is_new"] & (first["model"] == size)].assign(tokens=0.0, device=None, commit=None)
        began = began.assign(arm=began["arm"] + ", before the first step")
        is_counted = lines["is_new"] & (lines["attention"] == "") & (lines["model"] == size)
        counted = lines.loc[is_counted, list(OBJECTIVES)].mean().to_frame().T
        every = pd.concat([of_size, began, counted.assign(arm="counting pieces, or a coin")])
        every["commit"] = of_size["commit"].iloc[0] if of_size["commit"].nunique() == 1 else every["commit"].fillna("")
        yield from shown("pretraining" + f"-{size}" * (size != "nano"), every, "{arm}", spec, "{Commits}.")
    if gaps.empty:
        return
    of_new = gaps[gaps["to"].isin(new["arm"])].assign(title=gaps["metric"].map(OBJECTIVES))
    spec, note = "{title}={difference:+4} ± {standard_error:4}", "Standard errors over {sequences} held-out sequences, "
    yield from shown("pretraining-gaps", of_new, "{from} → {to}", spec, note + "paired.", across="title")
    of_loss = gaps[gaps["metric"] == "mlm_loss"].rename(columns={"to": "arm"})
    gone_on = last[~last["is_new"]].join(first.set_index("record")[list(OBJECTIVES)].add_prefix("first_"), on="record")
    gone_on = gone_on.merge(of_loss, "left", on="arm").sort_values("first_mlm_loss")
    spec = "pairs seen={pairs:%}; softmax's mass={attention_mass:2}; loss, switched={first_mlm_loss:3}; "
    spec += "loss, trained on={mlm_loss:3} ({difference:+3} ± {standard_error:3}); "
    spec += "order, switched={first_sop_accuracy:3}; order, trained on={sop_accuracy:3}"
    note = "From {variant}, {steps:0} steps, learning rate {learning_rate}; {commits}."
    yield from shown("pretraining-continued", gone_on, "{attention}", spec, note)


def long_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Models trained on long sequences; in brackets, or in columns of their own, what is published."""
    lines = read(root, "long_range/duplication")
    for length in sorted(lines["max_length"].unique()) if len(lines) else ():
        of_length = lines[lines["max_length"] == length]
        seed = of_length["seed"].map("{:.0f}".format)
        of_length = of_length.assign(label=of_length["label"].where(seed == "0", of_length["label"] + ", seed " + seed))
        of_length = of_length.sort_values("label", key=lambda label: label != "softmax", kind="stable")
        of_paper = of_length["evaluated"].str.match("full|LSH")
        note = "{max_length:,} tokens; chance {chance:%1}"
        spec = "steps={steps}; seconds={seconds:0}; {evaluated}={accuracy:%1} ({published:%1})"
        shorter = note + ". Shorter than published: {shorter}."
        yield from shown(f"duplication-{length}", of_length[of_paper], "{label}", spec, shorter, across="evaluated")
        spec, note = "cost={evaluated_cost:%}; {label}={accuracy:%1}", note + "; {steps} steps."
        yield from shown(f"duplication-{length}-keys", of_length[~of_paper], "{evaluated}", spec, note, across="label")
    for task in ("listops", "text"):
        yield from shown(task, read(root, f"long_range/{task}"), "{label}", ARENA, ARENA_NOTE)


def rotary_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Attention switched in a model with rotary positions and in one with learned ones: nats lost on masked words."""
    lines = pd.concat([read(root, f"runs/rotary/{model}").assign(of=model) for model in ("nano", "rotary")])
    if lines.empty:
        return
    lines = lines.sort_values(["of", "variant", "share_asked"], ascending=[True, True, False])
    lines["error"] = 2 * lines["standard_error"]
    spec = "{of}={difference:+3} ± {error:3}; {of} either way={change:3}"
    per = " and ".join(f"{loss:.2f}" for loss in lines.groupby("of")["softmax_loss"].first())
    note = (
        f"Nats above softmax's ({per}), ± two standard errors over {{paragraphs}} paragraphs of {{length}} tokens; how "
    )
    note += "much a word's loss changes either way. {Commits}."
    yield from shown(
        "rotary", lines, "{variant}, {share_asked:%} of the pairs", spec, note, across="of", corner="variant"
    )


def masked_tables(root: Path, rows: pd.DataFrame) -> Named:
    """By variant and length how the loss of a masked word changes, and the full cost; a table a share."""
    lines = rows[(rows["kind"] == "masked words") & (rows["study"] == "masked-words")]
    if lines.empty:
        return
    lines = wide(lines).sort_values("length", kind="stable")
    lines["error"] = 2 * lines["standard_error"]
    losses = lines.groupby("length")["softmax_loss"].first()
    per = ", ".join(f"{loss:.2f} at {length:.0f} tokens" for length, loss in losses.items())
    spec = "{length:.0f} tokens={difference:+2} ± {error:2}; {length:.0f} either way={change:2}; "
    spec += "{length:.0f} cost={cost:%}"
    for share in sorted(lines["share"].dropna().unique(), reverse=True):
        of_share = lines[lines["share"].isna() | (lines["share"] == share)]
        order = of_share[of_share["length"] == of_share["length"].max()].sort_values("change")["variant"]
        note = f"Loss of a masked word, in nats above softmax's ({per}), ± two standard errors over paragraphs; how "
        note += f"much a word's loss changes either way; full cost. {100 * share:g}% of the pairs where there is a "
        note += "choice. {model}, {commits}."
        named = {"across": ["length"], "order": order, "corner": "variant"}
        yield from shown(f"masked-words-{100 * share:.0f}", of_share, "{variant}", spec, note, **named)


def reliability_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Faults by kind; how each notebook ended in each environment, and what that is."""
    if len(lines := read(root, "reliability/faults")):
        counts = pd.DataFrame({
            "faults": lines["kind"].notna(),
            "failed, and named": lines["message"].notna(),
            "resumed at a checkpoint": lines["outcome"].str.startswith("went on after"),
            "broken": lines["outcome"].str.startswith("BROKEN"),
        }).groupby(lines["kind"], sort=False).sum()  # fmt: skip
        counts.loc["all"] = counts.sum()
        spec = "; ".join(f"{name}={{{name}}}" for name in counts)
        yield from shown("faults", counts.reset_index(), "{kind}", spec, corner="kind")
    if len(lines := read(root, "reliability/colab")):
        lines = lines.sort_values(["environment", "notebook"])
        by = {"across": "environment"}
        yield from shown("colab", lines, "{notebook}", "{environment}={outcome}", corner="notebook", **by)
        names = [*VERSIONS, "added", "replaced", "commit"]
        tall = lines.assign(commit=lines["commit"].str[:10]).melt("environment", names).fillna({"value": ""})
        groups = tall.groupby(["environment", "variable"], sort=False)["value"]
        values = groups.agg(lambda values: ", ".join(dict.fromkeys(values)) or "none").reset_index()
        yield from shown("colab-versions", values, "{variable}", "{environment}={value}", order=names, **by)


COMMON = (
    twin_tables, original_tables, collapse_tables, time_tables, pretraining_tables, long_tables, masked_tables,
    rotary_tables, reliability_tables,
)  # fmt: skip
