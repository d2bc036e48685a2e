"""The paper's two studies: verdicts, tables and figures."""
