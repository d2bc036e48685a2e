"""The server: FedFMRL where a FedAvg app has FedAvg."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fmrl.federated import FedFMRL
from fmrl.records import write_json
from linear_clients.task import ALGO, FEATURES

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, each with every client; a round that misses one is asked for again."""
    config, clients = context.run_config, int(context.run_config["clients"])
    strategy = FedFMRL(
        ALGO, folder=config["folder"] or None, min_available_nodes=clients,
        min_train_nodes=clients, min_evaluate_nodes=clients, min_replies=clients, attempts=50,
    )  # fmt: skip
    start = ArrayRecord({"phi": Array(np.zeros(FEATURES))})
    result = strategy.start(grid, start, int(config["rounds"]), timeout=config["timeout"])
    if config["report"]:
        told = {"phi": result.arrays["phi"].numpy(), "rounds": strategy.done}
        told["train"] = {n: dict(m) for n, m in result.train_metrics_clientapp.items()}
        told["evaluate"] = {n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()}
        write_json(config["report"], told)
