"""How a rung is trained: the Mixture-of-Experts transformer, its step, and runs that resume.

Names are imported from their modules (``models.transformer``, ``models.train``, ``models.run``, ``models.pool``), so
that what needs no JAX, such as the corpus and the command line, does not wait for it.
"""
