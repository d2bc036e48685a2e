"""The contract of scikit-learn, checked by scikit-learn."""

from sklearn.utils.estimator_checks import parametrize_with_checks

import fmrl


@parametrize_with_checks([fmrl.MetaClassifier(), fmrl.MetaRegressor()])
def test_contract(estimator, check):
    check(estimator)
