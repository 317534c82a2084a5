"""Hooks of schemathesis that let more requests through to the model."""
import schemathesis


@schemathesis.hook
def map_body(context, body):
    """Names become one that is served, and conversations without a question get one."""
    if not isinstance(body, dict):
        return body
    # What was made is used again: the hook works on a copy.
    body = dict(body)
    if isinstance(body.get("model"), str):
        body["model"] = "default"
    messages = body.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        if not any(message.get("role") == "user" for message in messages):
            body["messages"] = [*messages, {"role": "user", "content": "What is 2+2?"}]
    return body
