"""What a run itself measures, and how it is read from its folder; all other metrics are declared by suites."""

from ..errors import UserError
from ..report.numbers import Metric
from ..runs.folder import RunFolder, parse_summary

# By what a run of a study is: a training, or a measurement of time.
RUN_METRICS = {
    "training": (
        Metric("test_error", "%"),
        Metric("median_error", "%"),
        Metric("val_error", "%"),
        Metric("top5_error", "%"),
        Metric("test_nll", "nats", digits=3),
    ),
    "timing": (Metric("time_ratio", "x"),),
}


def metrics_of(folder: RunFolder) -> dict[str, float]:
    """Return the metrics of a finished run by name: test metrics and validation error of the chosen epoch.

    Raises:
        UserError: a file of the run is damaged.
    """
    results = folder.results()
    if "time_ratio" in results:
        return {"time_ratio": results["time_ratio"]}
    test = results["test"]
    found = {"test_error": test["error"], "test_nll": test["loss"], "top5_error": 100.0 - test["top5"]}
    if "median" in results:
        found["median_error"] = results["median"]["error"]
    if results["chosen_on"] == "validation":
        errors = {row["epoch"]: row["val_error"] for row in parse_summary(folder.summary())}
        error = errors.get(results["best_epoch"])
        if error is None:
            raise UserError(f"{folder.path}/summary.csv has no validation of epoch {results['best_epoch']}")
        found["val_error"] = error
    return found
