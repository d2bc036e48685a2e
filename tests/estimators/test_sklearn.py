"""The contract of scikit-learn, checked by scikit-learn."""

import os
import subprocess
import sys

from sklearn.utils.estimator_checks import parametrize_with_checks

import fmrl


@parametrize_with_checks([fmrl.MetaClassifier(), fmrl.MetaRegressor()])
def test_contract(estimator, check):
    check(estimator)


def test_no_check_is_left_out():
    """Those of other libraries' arrays run where SciPy is told before it is imported."""
    asked = os.environ | {"SCIPY_ARRAY_API": "1"}
    words = [sys.executable, "-m", "pytest", "-n", "0", "-rA", "-k", "array_api", __file__]
    told = subprocess.run(words, env=asked, capture_output=True, text=True, timeout=300).stdout
    assert told.count("PASSED") == 2 and "SKIPPED" not in told, told
