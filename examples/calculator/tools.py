"""A calculator as a tool, as TRL takes it: type hints, and a docstring that says what each argument is."""

import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.USub: operator.neg}


def calculate(expression: str) -> str:
    """Computes an arithmetic expression.

    Args:
        expression: The expression, for example 12 * 34.

    Returns:
        The result.
    """
    return str(value(ast.parse(expression, mode="eval").body))


calculate.idempotent = True  # an interrupted call may be made again


def value(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(number)):
            return number
        case ast.BinOp(left, operation, right):
            return OPERATORS[type(operation)](value(left), value(right))
        case ast.UnaryOp(operation, operand):
            return OPERATORS[type(operation)](value(operand))
    raise ValueError("only whole numbers and + - * are known")
