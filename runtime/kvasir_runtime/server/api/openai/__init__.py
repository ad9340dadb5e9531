"""OpenAI's API: completions, chat completions, models, and vLLM's additions to it."""
