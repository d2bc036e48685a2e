"""Made-up records of a deep study."""

from fmrl.reproduce.deep.settings import Plan, reference, runs

TINY = "Pool('Tiny ImageNet-100', 64 classes, 8,960 inputs (3, 84, 84))"


def made(
    settings: str, data: str, iterations: int, finished: int, begun: int, shift: float = -0.04
) -> dict:
    """A study's record with the authors' accuracies moved by ``shift``: ``finished`` runs, then
    ``begun`` ones with one look.
    """
    results = {}
    for i, r in enumerate(runs(settings)[: finished + begun]):
        end = round(reference()[r.name]["accuracy"]["test"] + shift, 5)
        results[r.name] = {"curve": [[iterations // 2, round(end - 0.02, 5)]]}
        if i < finished:
            results[r.name]["curve"].append([iterations, end])
            ends = {"transductive": (end, 1000), "inductive": (round(end - 0.03, 5), 250)}
            results[r.name]["final"] = {
                p: {"accuracy": a, "error": 0.005, "tasks": n} for p, (a, n) in ends.items()
            }
    plan = Plan(every=iterations // 2, iterations=None if iterations == 20_000 else iterations)
    about = {
        "configuration": {"device": "a device"},
        "plan": repr(plan),
        "data": data,
        "training seconds": 1234.6,
    }
    return about | {"runs": results}
