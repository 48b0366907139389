"""Hot loops: how they are written, compiled, kept and debugged.

Hot loops are plain functions that `kernel` of `kernel.py` makes a `Kernel` of.

- A call of a `Kernel` runs as plain Python at first, and counts the rounds of its loops
  (`interpreted.py`). After `WARM_ROUNDS` in a process (150,000, all calls together) it loads what
  numba compiled; where there is no file of it, it is compiled after `COLD_ROUNDS` a byte of code;
  after `LONG_ROUNDS` it leaves a note, by which the next process compiles.
  A call that comes to that starts again, with its arrays as they were. So tests of compiled code,
  and timings, begin with `compile_always()` or call `Kernel.compiled`. A round takes about 0.35 us.
- No search asks what is compiled: `tests/tools/cold_same.py` runs all methods with an empty and a
  full cache and compares bytes.
- Interpreted, a kernel has views of its arrays (`memoryview`), which are two to three times as
  fast: what it does with `a[i, j]`, `len(a)` and `a.shape` alone stays so. A row `a[i]`, `a[:] = 0`
  and `a.copy()` want arrays, and bring its calls back to them.
- `NUMBA_DISABLE_JIT=1 dnnp-partition ...` runs them as Python: breakpoints, prints and tracebacks
  work, and the bytes that come out are the same. Where that is too slow, call one of them as
  `function.py_func(...)`, or its `interpreted` version, which replaces the kernels that it calls.
- Compiled code checks no index. `NUMBA_BOUNDSCHECK=1` does: what is compiled with it is kept apart.
- The cache (`cache.py`) holds one sealed file `*.nbc` a signature, in the folders that it names:
  in a checkout `kernels.d` beside it. The seal covers the code of the kernel, of all kernels
  that it calls and their constants; the subfolder stands for Python, numba, llvmlite, numpy, their
  settings and the processor. Nothing has to be deleted after an edit; deleting all is harmless.
- `python -m dnnp.warm --defaults` compiles what commands need without options, `make warm`
  everything; a wheel has kernels if `DNNP_WARM` is set (`setup.py`). `core/api/warm.py` has small
  problems that reach every kernel. One that none reaches fails `tests/api/test_warm.py`: give it a
  case, or delete it. `make warm-check` lists what the steps compile after that.
- Only what Python calls is a `kernel`, or `lean` if it makes no arrays: taking large tuples of
  arrays from Python is most of what is compiled of a small kernel. What only kernels call is a
  `callee`; a `part`, which LLVM compiles into its caller, if it is called millions of times; or
  `inlined`, which numba copies, if it is called in one place. Neither `lean` nor `callee` nor
  `part` counts references, so they may make no arrays (also none by `.min()` or `a[:] = b`). "NRT
  required but not enabled" says that one does, once nothing older is in the cache.
- What costs seconds to compile: numpy's sorts and assignments of slices within kernels, and what is
  compiled again within each kernel above it, which a rare call in a hot kernel is.
- The first compilation takes seconds, and is said once on standard error (`note_compiling` in
  `core/api/callbacks.py`). Arrays go in as `plain` in `kernel.py` makes them: another layout or
  type is another signature, compiled again.
- Where compiled and plain code differ it is mostly a type: a whole number of numba or numpy wraps
  at 64 bits, one of Python does not.
"""
