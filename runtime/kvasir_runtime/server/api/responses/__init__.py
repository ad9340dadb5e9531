"""`/v1/responses`: OpenAI's newer API, with its state in memory."""
