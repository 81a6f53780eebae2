"""An agent: a program with a client of OpenAI and a calculator. It knows nothing of rhymed but the row.

OPENAI_BASE_URL and OPENAI_API_KEY lead the client to the policy. The program ends when the policy calls no tool.
"""

import ast
import json
import operator
import os

import openai

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.USub: operator.neg}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Computes an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "For example 12 * 34."}},
                "required": ["expression"],
            },
        },
    }
]


def calculate(expression: str) -> str:
    return str(value(ast.parse(expression, mode="eval").body))


def value(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(number)):
            return number
        case ast.BinOp(left, operation, right):
            return OPERATORS[type(operation)](value(left), value(right))
        case ast.UnaryOp(operation, operand):
            return OPERATORS[type(operation)](value(operand))
    raise ValueError("only whole numbers and + - * are known")


def result(call) -> str:
    try:
        return calculate(**json.loads(call.function.arguments))
    except Exception as error:  # the policy reads what was wrong
        return json.dumps({"error": str(error)})


def main() -> None:
    row = json.loads(os.environ["RHYMED_ROW"])
    client = openai.OpenAI(timeout=3600)  # the policy may wait for new weights
    messages = row["prompt"]
    for _ in range(3):
        answer = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0]
        if answer.finish_reason != "tool_calls":
            return
        messages.append(answer.message)
        for call in answer.message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result(call)})


if __name__ == "__main__":
    main()
