"""Every theorem of the paper, and a few beyond it, as a function that returns a `Bound`: a number,
its terms, what it rests on, where it is proved.

| function | result | says |
|---|---|---|
| `regret`, `per_task`, `sharp` | Theorem A.1 | regret inside a task, and its mean over tasks |
| `meta_regret` | Lemma B.2, Theorem A.2 | cost of a moving phi against the best fixed one |
| `exact`, `tuned` | Corollary B.1, Theorem 2.1 | TAR of FAL, all tasks alike |
| `upper` | Theorem B.1 | TAR of Algorithm 2, every variant |
| `fli_online`, `fal_stochastic`, `fli_batch` | Propositions B.1 to B.3 | parameters for `upper` |
| `excess`, `sampling_error` | Lemmas B.4 and B.6 | what chance costs optima and actions |
| `fli_online_rate`, `fal_stochastic_rate`, `fli_batch_rate` | Theorem 3.1 | TAR in closed form |
| `tuned_fli` | Corollaries B.2 and B.4 | their ε and γ |
| `measured` | Setting B.1 | parameters for `upper`, as a finished run had them |
| `spread` | Setting B.1 | D*, D̄, G', C and β of points in a domain |
| `known`, `adaptive` | Remark 2.1 | TAR with a known or an averaged deviation |
| `in_metric` | Theorem A.1 in a metric | the same, with the gradients that were met |
| `learned_metric`, `learning_cost` | beyond the paper | TAR with a metric that is learned |
| `ewoo` | beyond the paper | TAR with an exponentially weighted guess |
| `dynamic`, `mixture`, `conditional` | beyond the paper | Σ sigma·B_R against what moves |
| `with_guess` | beyond the paper | TAR from such a sum |
| `hedge`, `centres` | beyond the paper | TAR of several compositions or starts at once |
| `private`, `noise_price` | beyond the paper | Σ sigma·B_R of a private mean, and its price |
| `noisy` | beyond the paper | expected regret with noisy gradients |
| `bayes_mixture`, `negative_elbo` | beyond the paper | log-loss of predicting by a prior |
| `lower` | Theorem B.2 | what no agent can beat |
| `mean_action_risk`, `loss_to_risk` | Propositions A.1 and A.2 | from regret to risk |
| `random_action_risk` | Corollary A.1 | the same with high probability |
| `online_to_batch` | Theorem B.3 | risk on a new task |

Where the paper's print is wrong, the functions compute what is true; docs/theory.md has each
derivation and counterexample."""

from fmrl.theory.bounds.average_regret import adaptive, exact, known, tuned, upper
from fmrl.theory.bounds.basic_theorems import (
    drift,
    loss_to_risk,
    lower,
    mean_action_risk,
    meta_regret,
    online_to_batch,
    per_task,
    psi,
    random_action_risk,
    regret,
    sharp,
    weights,
)
from fmrl.theory.bounds.bayes_mixture import bayes_mixture, negative_elbo
from fmrl.theory.bounds.bound import ASSUMED, CHECKED, FALSE, Assumption, Bound
from fmrl.theory.bounds.geometry import Spread, distance, spread
from fmrl.theory.bounds.learned_steps import ewoo, in_metric, learned_metric, learning_cost
from fmrl.theory.bounds.moving import (
    centres,
    conditional,
    dynamic,
    hedge,
    mixture,
    with_guess,
)
from fmrl.theory.bounds.privacy import noise_price, noisy, private
from fmrl.theory.bounds.propositions import (
    Parameters,
    excess,
    fal_stochastic,
    fli_batch,
    fli_online,
    measured,
    sampling_error,
)
from fmrl.theory.bounds.rates import fal_stochastic_rate, fli_batch_rate, fli_online_rate, tuned_fli

__all__ = ["ASSUMED", "CHECKED", "FALSE", "Assumption", "Bound", "Parameters", "Spread"]
__all__ += ["adaptive", "centres", "conditional", "distance", "drift", "dynamic", "ewoo", "exact"]
__all__ += ["excess", "fal_stochastic", "fli_batch", "fli_online", "hedge", "in_metric", "known"]
__all__ += ["learned_metric", "learning_cost", "lower", "measured", "meta_regret", "mixture"]
__all__ += ["noise_price", "noisy", "online_to_batch", "per_task", "private", "psi", "regret"]
__all__ += ["sharp", "spread", "tuned", "upper", "weights", "with_guess"]
__all__ += ["fal_stochastic_rate", "fli_batch_rate", "fli_online_rate", "tuned_fli"]
__all__ += ["bayes_mixture", "negative_elbo"]
__all__ += ["loss_to_risk", "mean_action_risk", "random_action_risk", "sampling_error"]
