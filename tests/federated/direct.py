"""Flower without its network: a grid that hands messages to clients and returns their replies."""

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity


def arrays(**named):
    return ArrayRecord({name: Array(a) for name, a in named.items()})


class Direct:
    """Nodes 1 … n; node i is client i − 1. ``break_`` changes or replaces a reply."""

    def __init__(self, app, clients, break_=None):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # stamped on messages
        self.app, self.nodes, self.sent = app, list(range(1, clients + 1)), []
        self.sizes = []  # of the parts in which messages came
        self.break_ = break_ or (lambda node, message, reply: reply)

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        self.sizes.append(len(messages))
        return [reply for m in messages if (reply := self.answer(m)) is not None]

    def answer(self, message):
        node = message.metadata.dst_node_id
        self.sent.append((node, message))
        config = {"partition-id": node - 1, "num-partitions": len(self.nodes)}
        context = Context(1, node, config, RecordDict(), {})
        try:
            reply = self.app(message, context)
        except Exception as error:
            reply = Message(Error(0, str(error)), reply_to=message)
        return self.break_(node, message, reply)
