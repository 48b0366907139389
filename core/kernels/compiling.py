"""Numba, made to compile no more than kernels need.

Two things take much of what numba takes to compile. It tries a dozen rules for each operator that
it meets; and it optimizes and compiles each function by itself, and once more within whatever calls
it. Where numba has changed so that this does not fit, it compiles as it does by itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def compile_less() -> None:
    """Have numba look up an operator once for each kind of arguments, and compile only what is
    called by address."""
    with suppress(ImportError, AttributeError):
        _resolve_once()
    with suppress(ImportError, AttributeError):
        _link_only()


def _resolve_once() -> None:
    from numba.core.targetconfig import ConfigStack
    from numba.core.types import Function

    resolve, known = Function.get_call_type, dict[Any, Any]()

    def once(self: Any, context: Any, args: Any, kws: Any) -> Any:
        key = self, context, ConfigStack.top_or_none(), args, tuple(kws.items())
        if key not in known:
            known[key] = resolve(self, context, args, kws)
        return known[key]

    Function.get_call_type = once  # type: ignore[method-assign]


def _link_only() -> None:
    from numba.core.codegen import JITCodeLibrary
    from numba.core.registry import cpu_target

    class Library(JITCodeLibrary):
        """Code that is optimized and compiled once its address is asked for."""

        def add_linking_library(self, library: Any) -> None:
            self._linking_libraries.append(library)
            getattr(self, "_reload_init", set()).update(getattr(library, "_reload_init", ()))

        def _get_module_for_linking(self) -> Any:
            if self._finalized or self._shared_module is not None:
                return super()._get_module_for_linking()
            module = self._final_module.clone()
            for library in dict.fromkeys(self._linking_libraries):
                module.link_in(library._get_module_for_linking(), preserve=True)
            for function in module.functions:
                if not function.is_declaration and function.linkage.name == "external":
                    function.linkage = "linkonce_odr"
            self._shared_module = module
            return module

        def get_pointer_to_function(self, name: str) -> Any:
            made = self._finalized or any(f.name == name for f in self._final_module.functions)
            return super().get_pointer_to_function(name) if made else 0

    codegen = cpu_target.target_context.codegen()
    set_env = codegen.set_env

    def set_known(name: str, env: Any) -> None:
        if codegen._engine.is_symbol_defined(name):
            set_env(name, env)

    codegen._library_class, codegen.set_env = Library, set_known
