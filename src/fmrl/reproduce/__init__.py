"""The paper's experiments and our own, a folder a study: what is run (``runs``, ``tasks``), and
what follows from it (``claims``). ``study`` runs parts and writes what they leave, ``verdict`` has
claims and rows, ``figures`` the pictures.
"""
