"""The learned prior over tasks: one Gaussian (`gaussian`), mixtures of them (`mixture`), the
posterior of a batch of tasks (`posterior`), and the marginal likelihood by which a prior is
estimated (`marginal`), for squared losses from sufficient statistics (`statistics`).
"""
