"""The rules of Algorithm 2 as values: within-task learners, update rules, meta-updates and
similarity rules. A file of rules that is put here is known to `parse`, and so to the command line
and to what was saved, without another edit.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
