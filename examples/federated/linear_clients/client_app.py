"""The client: it plays its own task from the server's phi with the server's steps."""

import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fmrl import federated
from linear_clients.task import ALGO, rows

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Play the rounds of the task."""
    if pause := float(context.run_config.get("pause", 0.0)):
        time.sleep(pause)
    task = rows(int(context.node_config["partition-id"]), 20, part=0)
    return federated.train_task(message, context, ALGO, task)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Adapt to the task, then score on rows it did not see."""
    client = int(context.node_config["partition-id"])
    task, test = rows(client, 20, part=0), rows(client, 50, part=1)
    return federated.evaluate_task(message, context, ALGO, task, test)
