"""The same clients, ten of them on a node: what a hospital does for its patients."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fmrl import federated
from linear_clients.client_app import evaluate as evaluate_one
from linear_clients.client_app import train as train_one

HOSTED = 10
app = ClientApp()


def people(context: Context) -> range:
    """The numbers of the clients on this node."""
    first = HOSTED * int(context.node_config["partition-id"])
    return range(first, first + HOSTED)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Every client plays its own task."""
    return federated.host(message, context, people(context), train_one)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Every client adapts, then scores."""
    return federated.host(message, context, people(context), evaluate_one)
