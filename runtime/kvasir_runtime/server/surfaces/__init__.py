"""The APIs that are spoken besides OpenAI's chat: translators of bodies into a chat's, and of its parts into events."""
