#!/usr/bin/env bash
# Libraries: mip (python-mip) 2.0.0 with its cbcbox 2.935, ortools 9.15.6755, highspy 1.16.0 and 1.15.0 (Python 3.11, Linux).
# Expected:  solvers from wheels bring libraries of their own and do not meet: mip's CBC, OR-Tools and HiGHS work in one process,
#            in each order. mip names highspy as what its HIGHS needs ("pip install mip[highs]" takes the newest).
# Happens:   once mip has made a CBC model, ortools (CP-SAT too, which needs no CBC) cannot be imported: "undefined symbol" in
#            ortools' own libOsiClp. With ortools imported first, mip.Model(solver_name="CBC") is a NameError: 'cbclib'
#            is not defined. With highspy 1.16.0 installed mip says "HiGHS not found. Please install the `highspy`
#            package"; with 1.15.0 it solves.
# Matters:   a partitioner that offers both solvers works in each test of one and fails where both are asked for; solvers belong in
#            processes of their own. A new release of highspy takes a solver away from programs that did not change.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q mip==2.0.0 cbcbox==2.935 ortools==9.15.6755 highspy==1.16.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import subprocess
import sys


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


CBC = "import mip; m = mip.Model(solver_name='CBC'); m.verbose = 0; x = m.add_var(var_type='I'); m += x >= 2.5\n" \
      "m.objective = mip.minimize(x); m.optimize(); assert x.x == 3\n"
SAT = "from ortools.sat.python import cp_model\n"
for alone in (CBC, SAT):
    assert run(alone)[0] == 0, run(alone)
status, said = run(CBC + SAT)
assert status == 1 and "ImportError" in said and "libOsiClp" in said and "undefined symbol" in said, said
status, said = run(SAT + CBC)
assert status == 1 and "NameError: name 'cbclib' is not defined" in said, said

HIGHS = CBC.replace("CBC", "HIGHS")
status, said = run(HIGHS)
assert status == 1 and "HiGHS not found. Please install the `highspy`" in said, said
older = [sys.executable, "-m", "pip", "install", "-q", "highspy==1.15.0"]
if subprocess.run(older, capture_output=True).returncode:
    sys.exit(2)
status, said = run(HIGHS)
assert status == 0, said
print("as stated: mip and ortools exclude each other in one process; mip finds highspy 1.15.0, not 1.16.0")
PY
