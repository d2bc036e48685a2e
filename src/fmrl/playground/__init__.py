"""The playground: one HTML file in which a network adapts to the reader's drawings, and Algorithm 2
plays tasks that can be dragged.

    fmrl.playground.write("playground.html")
"""

from fmrl.playground.page import Table, render, table_of, write
from fmrl.playground.weights import Weights, read_weights

__all__ = ["Table", "Weights", "read_weights", "render", "table_of", "write"]
