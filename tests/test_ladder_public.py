"""Every folder of the public data is imported by its own map: all rows, the source's losses, known exclusions."""

import csv
import json
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fits.cli import app as fit_app
from fits.result import read_fit
from ladder.cli_runs import runs_app
from ladder.importer import FILE, WHY, Imported, import_runs
from ladder.runmap_read import read_map, shipped_maps
from ladder.runs import read_runs

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
# By folder: rows of each file (its README's), rows excluded by reason, rows held out.
EXPECTED: dict[str, tuple[dict[str, int], dict[str, int], int]] = {
    "bnsl_addition": (
        {"points.csv": 17, "double_descent_nlp_model.csv": 64, "double_descent_translation.csv": 59},
        {"no_compute": 140},
        0,
    ),
    "chinchilla_epoch": ({"runs.csv": 245}, {"off_trend": 5}, 0),
    "clark_routed_lm": ({"final.csv": 223, "curves.csv": 5799}, {"manual": 2083, "no_loss": 16}, 0),
    "colpret_curves": (
        {"curves.csv": 11805, "opt_trajectories_bigbench.csv": 147},
        {"no_compute": 11805, "no_loss": 147},
        0,
    ),
    "datablations": ({"final_losses.csv": 296, "curves.csv": 9261}, {"duplicate": 332}, 0),
    "delphi": ({"isoflop_runs.csv": 339, "heldout_runs.csv": 22}, {}, 22),
    "gadre_overtraining": ({"runs.csv": 104}, {}, 0),
    "gemstones": ({"runs.csv": 818, "val_dclm.csv": 770, "val_edu.csv": 770}, {"under_annealed": 619}, 0),
    "isoflop_collection": ({"runs.csv": 947, "marin_dense_raw.csv": 273}, {"off_trend": 197}, 15),
    "laion_clip_mammut": ({"segmentation.csv": 1431}, {}, 0),
    "lr_schedule_curves": ({"curves.csv": 6265}, {"no_compute": 6265}, 0),
    "marin_moe": (
        {
            "isoflop_v16_runs.csv": 49,
            "large_runs.csv": 12,
            "compute_optimal_baselines.csv": 17,
            "nd_grid_aug_lr_sweep.csv": 26,
            "isoflop_aug_hero_runs.csv": 7,
            "fast_track_ladder.csv": 8,
            "fast_track_depth.csv": 4,
        },
        {"duplicate": 6, "no_compute": 4},
        18,
    ),
    "nanochat_optima": ({"optima.csv": 12}, {}, 0),
    "obs_scaling": (
        {"base_llm_benchmark_eval.csv": 148, "base_llm_emergent_capability_eval.csv": 84},
        {"no_loss": 232},
        0,
    ),
    "porian_refinedweb": ({"isoflop_points.csv": 1164}, {}, 0),
    "rnsl_extrapolation": ({"benchmark.csv": 20282}, {"no_compute": 19595, "duplicate": 687}, 0),
    "sft_rectified": ({"points.csv": 1350}, {"no_compute": 1350}, 0),
    "steplaw": ({"dense.csv": 1911, "moe.csv": 708}, {"manual": 2586}, 0),
    "vocab_scaling": ({"points.csv": 1200}, {"no_loss": 1200}, 0),
}
# File, source column of losses, metric (its end): every loss of the file must arrive as it is.
LOSSES = [
    ("bnsl_addition/points.csv", "loss", "addition/test_loss"),
    ("bnsl_addition/double_descent_translation.csv", "test_loss", "double_descent_translation/test_loss"),
    ("chinchilla_epoch/runs.csv", "loss", "massivetext/validation_loss"),
    ("clark_routed_lm/final.csv", "loss", "validation/loss"),
    ("clark_routed_lm/final.csv", "loss_lambada", "lambada/loss"),
    ("clark_routed_lm/curves.csv", "loss", "validation_curve/loss"),
    ("colpret_curves/curves.csv", "loss", ""),
    ("datablations/final_losses.csv", "loss", "validation/loss"),
    ("datablations/curves.csv", "loss", ""),
    ("delphi/isoflop_runs.csv", "loss", "paloma/macro_loss"),
    ("delphi/heldout_runs.csv", "loss", "paloma/macro_loss"),
    ("gadre_overtraining/runs.csv", "loss_c4_val", "c4_val/loss"),
    ("gadre_overtraining/runs.csv", "loss_de_en", "de_en/loss"),
    ("gemstones/runs.csv", "loss", "training_mix/validation_loss"),
    ("gemstones/val_edu.csv", "loss", "fineweb_edu/loss"),
    ("isoflop_collection/runs.csv", "loss", ""),
    ("isoflop_collection/marin_dense_raw.csv", "loss_paloma_macro", "paloma/macro_loss"),
    ("laion_clip_mammut/segmentation.csv", "train_contrastive_loss", "train/contrastive_loss"),
    ("lr_schedule_curves/curves.csv", "loss", "train/loss"),
    ("marin_moe/isoflop_v16_runs.csv", "paloma_macro_loss", "paloma/macro_loss"),
    ("marin_moe/isoflop_v16_runs.csv", "paloma_c4_en_bpb", "paloma/c4_en/bpb"),
    ("marin_moe/large_runs.csv", "value", ""),
    ("marin_moe/nd_grid_aug_lr_sweep.csv", "best_paloma_macro_loss", "paloma/macro_loss"),
    ("nanochat_optima/optima.csv", "bpb_opt", "validation/bpb"),
    ("porian_refinedweb/isoflop_points.csv", "loss", ""),
    ("rnsl_extrapolation/benchmark.csv", "loss", ""),
    ("sft_rectified/points.csv", "loss", ""),
    ("steplaw/dense.csv", "loss", "train/smooth_loss"),
    ("steplaw/moe.csv", "loss", "train/smooth_loss"),
]


def present() -> None:
    """Skip where the public data are not beside the checkout."""
    if not DATA.is_dir():
        pytest.skip("the public data are not beside this checkout")


@cache
def imported(folder: str) -> Imported:
    """Return the import of a folder by the map of its name."""
    return import_runs(str(DATA / folder), read_map(folder))


def source_rows(name: str) -> list[dict[str, str]]:
    """Return a source file read independently of the importer."""
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_folder_has_a_map() -> None:
    present()
    folders = {path.name for path in DATA.iterdir() if path.is_dir()}
    assert folders == set(EXPECTED)
    assert folders < set(shipped_maps())


@pytest.mark.parametrize("folder", EXPECTED)
def test_rows_exclusions_and_held_out_runs(folder: str) -> None:
    present()
    files, excluded, held_out = EXPECTED[folder]
    found = imported(folder)
    frame = found.table.frame
    assert {Path(name).name: rows for name, rows in found.source_rows.items()} == files
    for name in files:
        assert files[name] == len(source_rows(f"{folder}/{name}"))
        metrics = frame.loc[frame[FILE] == name].groupby("extra_source_row").size()
        assert len(metrics) == files[name]
    assert frame["excluded_reason"].value_counts().to_dict() == excluded
    assert frame.loc[frame["excluded_reason"].notna(), WHY].notna().all()
    assert int(frame["role"].eq("held_out").sum()) == held_out
    assert found.notes == (), "no cell of the public data is bad"


@pytest.mark.parametrize(("name", "column", "metric"), LOSSES)
def test_every_loss_arrives(name: str, column: str, metric: str) -> None:
    present()
    folder, _, file = name.partition("/")
    frame = imported(folder).table.frame
    rows = frame[(frame[FILE] == file) & (frame["metric"].eq(metric) if metric else True)]
    losses = [float(row[column]) if row[column] else None for row in source_rows(name)]
    assert [None if pd.isna(loss) else loss for loss in rows["loss"]] == losses


def test_exclusions_agree_with_the_sources() -> None:
    """Counted in the files, independently of the maps."""
    present()
    assert sum(row["besiroglu_outlier"] == "1" for row in source_rows("chinchilla_epoch/runs.csv")) == 5
    assert sum(row["duplicate"] == "1" for row in source_rows("rnsl_extrapolation/benchmark.csv")) == 687
    assert sum(row["outlier"] == "1" for row in source_rows("isoflop_collection/runs.csv")) == 197
    assert sum(row["phase"] != "cool_end" for row in source_rows("gemstones/runs.csv")) == 619
    sweeps = [*source_rows("steplaw/dense.csv"), *source_rows("steplaw/moe.csv")]
    assert sum(row["is_cell_best"] == "0" for row in sweeps) == 2586


def test_oscar_curves_of_three_and_four_epochs_are_one_curve() -> None:
    """A defect of the source that a fit would count twice: 326 checkpoints agree in tokens and loss, to all digits."""
    present()
    curves: dict[str, set[tuple[str, str]]] = {"3": set(), "4": set()}
    for row in source_rows("datablations/curves.csv"):
        if row["run"] == "lm1-2b8-55b-oscar-repetitions" and row["epochs"] in curves:
            curves[row["epochs"]].add((row["tokens_seen"], row["loss"]))
    assert len(curves["3"] & curves["4"]) == 326


SPOTS = [  # folder, run, metric, column, value: by hand from the source files and their READMEs
    ("chinchilla_epoch", "chinchilla-2", "", "tokens", 9.227541223e18 / 6 / 2979521172),
    ("clark_routed_lm", "clark-18", "validation/loss", "experts", 1),
    ("clark_routed_lm", "clark-18", "validation/loss", "compute", 5.407016363e19),
    ("datablations", "2b88b4b#2", "", "unique_tokens", 4e9),
    ("datablations", "2b88b4b#2", "", "compute", 1.3488e20),
    ("delphi", "isoflop-1e+18-d512-L6-B32-comma-mix", "", "nonembedding_active_params", 156508160 - 2 * 512 * 128256),
    ("delphi", "isoflop-1e+18-d512-L6-B32-comma-mix", "", "budget", 3e18),
    ("gadre_overtraining", "c4_original-d=1024_l=24_h=8-0.25", "c4_val/loss", "tokens_per_param", 5),
    ("laion_clip_mammut", "mammut/ViT-L-32/3072000/b1024/lr0.0005/w2000/1", "", "compute", 228188160e9),
    ("marin_moe", "isoflop-moe-v16-1e+18-d512", "paloma/macro_loss", "active_params", 149618688),
    ("marin_moe", "isoflop-moe-v16-1e+18-d512", "paloma/macro_loss", "compute", 2.506217192215806e18 - 6 * 512 * 128256 * 3822845952),
    ("marin_moe", "moe_1e23_d5120/large", "paloma/macro_loss", "loss", 2.234),
    ("obs_scaling", "meta-llama/Llama-2-7b-hf", "", "compute", 84e21),
    ("steplaw", "moe-1", "", "compute", 1681489920 * 2e9),
    ("vocab_scaling", "n33222784-v4096", "", "extra_loss_unigram_normalised", -1.349444985),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "run", "metric", "column", "value"), SPOTS)
def test_spot_values(folder: str, run: str, metric: str, column: str, value: float) -> None:
    present()
    frame = imported(folder).table.frame
    rows = frame[(frame["run_id"] == run) & (frame["metric"].eq(metric) if metric else True)]
    assert rows[column].iloc[0] == pytest.approx(value, rel=1e-12)


def test_marin_budgets_are_met_without_the_head() -> None:
    """Logged FLOPs less the head give the nominal budgets (README: to less than 1 %)."""
    present()
    frame = imported("marin_moe").table.frame
    rows = frame[(frame[FILE] == "isoflop_v16_runs.csv") & (frame["metric"] == "paloma/macro_loss")]
    assert (rows["compute"] / rows["budget"] - 1).abs().max() < 0.01


@pytest.mark.parametrize("folder", ["colpret_curves", "lr_schedule_curves", "obs_scaling", "vocab_scaling"])
def test_tables_without_loss_or_compute_say_why(folder: str) -> None:
    present()
    frame = imported(folder).table.frame
    assert frame["excluded_reason"].notna().all()
    assert frame[WHY].str.len().min() > 20


def run(app: object, *arguments: str) -> str:
    """Return what a command printed; its known errors are raised."""
    result = CliRunner().invoke(app, arguments)  # type: ignore[arg-type]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("folder", "recipe", "metric", "size", "runs"),
    [
        ("chinchilla_epoch", None, "massivetext/validation_loss", "total_params", 240),
        ("delphi", "delphi_v2_adamh_v6", "paloma/macro_loss", "total_params", 81),
        ("marin_moe", "marin-moe-v16", "paloma/macro_loss", "nonembedding_active_params", 45),
    ],
)
def test_import_then_fit(tmp_path: Path, folder: str, recipe: str | None, metric: str, size: str, runs: int) -> None:
    present()
    only = () if recipe is None else ("--recipe", recipe)
    out = str(tmp_path / "runs.parquet")
    said = json.loads(run(runs_app, "import", str(DATA / folder), "--map", folder, *only, "-o", out, "--json"))
    assert said["rows"] == len(read_runs(out).frame)
    assert said["notes"] == []
    run(runs_app, "check", out)
    options = ("--metric", metric, "--size", size, "--resamples", "0", "--study", str(tmp_path), "--json")
    fitted = json.loads(run(fit_app, "run", "--law", "chinchilla", *options))
    assert (fitted["status"], fitted["n_runs"]) == ("converged", runs)
    if folder == "chinchilla_epoch":
        result = read_fit(fitted["path"])
        assert result.objective == pytest.approx(0.0010182740178, abs=1e-12)
        published = {"E": 1.817218, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}
        for name, value in published.items():
            assert fitted["theta"][name] == pytest.approx(value, rel=5e-6)


def test_check_lists_every_complaint(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "run_id": ["a", "b", "b", "d"],
            "status": ["finished", "lost", "finished", "finished"],
            "compute": ["1e18", "x", "2e18", "-1"],
            "flop_convention": "MATMUL_FULL",
            "metric": "m",
            "loss_unit": "nats_per_token",
            "loss": [3.0, 2.5, 2.5, None],
        }
    )
    frame.to_csv(tmp_path / "runs.csv", index=False)
    result = CliRunner().invoke(runs_app, ["check", str(tmp_path / "runs.csv")])
    for place in (
        "row 2, column compute: 'x' is not a number",
        "row 2, column status: 'lost' is none of",
        "row 3, column run_id: 'b' stands twice",
        "row 4, column compute: -1 must be positive",
        "row 4, column loss: no value",
    ):
        assert place in result.stdout
    assert "5 cells cannot be used" in str(result.exception)


def test_maps_are_listed_and_shown() -> None:
    listed = run(runs_app, "maps")
    assert all(name in listed for name in EXPECTED)
    assert run(runs_app, "maps", "wandb").startswith('schema = "runmap/1"')


def test_existing_tables_are_not_overwritten(tmp_path: Path) -> None:
    present()
    out = tmp_path / "runs.csv"
    arguments = ("import", str(DATA / "nanochat_optima"), "--map", "nanochat_optima", "-o", str(out))
    run(runs_app, *arguments)
    result = CliRunner().invoke(runs_app, list(arguments))
    assert "exists" in str(result.exception)
    run(runs_app, *arguments, "--force")
