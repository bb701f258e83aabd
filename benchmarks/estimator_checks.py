"""scikit-learn's `check_estimator` on `LongTailClassifier()` as it is: no setting changed, no failure expected.

    python benchmarks/estimator_checks.py

The tests run the same checks with few candidates and short trainings, which takes seconds. This takes minutes.
"""

import json
import time
import warnings
from collections import Counter
from pathlib import Path

import sklearn
import torch
from sklearn.utils.estimator_checks import check_estimator

from spectail.sklearn import LongTailClassifier

RESULTS = Path(__file__).parent / "results" / "estimator_checks.json"


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the checks, which fit on rows without meaning
    began, used = time.time(), time.process_time()

    def said(check_name, status, exception, **more):
        print(f"{time.process_time() - used:7.1f} s  {status:8}{check_name}{f': {exception}' if exception else ''}",
              flush=True)  # fmt: skip

    done = check_estimator(LongTailClassifier(), on_skip=None, on_fail=None, callback=said)
    record = {
        "scikit-learn": sklearn.__version__,
        "checks": dict(Counter(one["status"] for one in done)),
        "not_passed": [one["check_name"] for one in done if one["status"] != "passed"],
        "processor_seconds": round(time.process_time() - used, 1),
        "seconds": round(time.time() - began, 1),
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
