"""How the types of backward operators are called."""

from __future__ import annotations

SUFFIX = "Grad"
"""What they end in, after the type of the operator whose gradient they compute."""


def gradient_type(op: str) -> str:
    """The type of what computes the gradient of an operator.

    >>> gradient_type("MatMul")
    'MatMulGrad'
    """
    return op + SUFFIX


def forward_type(op: str) -> str:
    """The operator type whose gradient one computes; of others, their own.

    >>> forward_type("MatMulGrad"), forward_type("MatMul")
    ('MatMul', 'MatMul')
    """
    return op.removesuffix(SUFFIX) or op
