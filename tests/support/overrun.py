"""`generate` as a version that went past its maximum with prompt lookup: three tokens where two were asked for."""

from collections.abc import Callable
from typing import Any

Generate = Callable[..., Any]


def one_token_more(generate: Generate) -> Generate:
    """The same with one token more at the end of a request that looks up, in its last block."""

    def planted(model: Any, inputs: Any, *, generation_config: Any, stopping_criteria: Any, **options: Any) -> Any:
        if generation_config.prompt_lookup_num_tokens is None:
            return generate(
                model, inputs, generation_config=generation_config, stopping_criteria=stopping_criteria, **options
            )
        generation_config.max_new_tokens += 1
        whole = generate(model, inputs, generation_config=generation_config, stopping_criteria=[], **options)
        stopping_criteria[0](whole, None)
        return whole

    return planted
