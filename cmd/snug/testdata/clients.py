"""What programs do with the package openai, against snug serve: clients.py URL KEY MODEL ADAPTER"""

import asyncio
import sys

import openai

url, key, model, adapter = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)
ask = [{"role": "user", "content": "say q"}]


def refused(kind, call, **fields):
    try:
        call()
    except kind as e:
        for name, want in fields.items():
            got = getattr(e, name)
            assert got == want, (kind, name, got, want)
        return
    raise AssertionError(f"no {kind}")


# models
names = [m.id for m in client.models.list()]
assert names == [model, adapter], names
assert client.models.retrieve(adapter).id == adapter
refused(openai.NotFoundError, lambda: client.models.retrieve("none"), code="model_not_found", param="model", status_code=404)

# chats, whole and as a stream
whole = client.chat.completions.create(model=model, messages=ask, temperature=0, max_tokens=24)
text, usage = whole.choices[0].message.content, whole.usage
assert whole.choices[0].finish_reason in ("length", "stop") and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, whole
assert usage.prompt_tokens_details.cached_tokens == 0
parts, last = [], None
for event in client.chat.completions.create(
    model=model, messages=ask, temperature=0, max_tokens=24, stream=True, stream_options={"include_usage": True}
):
    last = event
    parts += [c.delta.content for c in event.choices if c.delta.content]
assert "".join(parts) == text and last.usage == usage, (parts, text, last)
with client.chat.completions.stream(model=model, messages=ask, temperature=0, max_tokens=24) as s:
    assert "".join(e.delta for e in s if e.type == "content.delta") == text
assert client.chat.completions.create(model=adapter, messages=ask, temperature=0, max_tokens=24).model == adapter

# a text that stops the answer
assert len(text) > 4, text
stop = text[2:4]
stopped = client.chat.completions.create(model=model, messages=ask, temperature=0, max_tokens=24, stop=[stop]).choices[0]
assert stopped.message.content == text[: text.index(stop)] and stopped.finish_reason == "stop", (stopped, text)

# log-probabilities
odds = client.chat.completions.create(model=model, messages=ask, max_tokens=5, seed=3, logprobs=True, top_logprobs=4).choices[0].logprobs.content
assert all(len(t.top_logprobs) == 4 and t.logprob <= 0 and t.top_logprobs[0].logprob >= t.logprob for t in odds), odds
c = client.completions.create(model=model, prompt="say q", max_tokens=5, seed=3, logprobs=2).choices[0]
assert len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) and all(len(t) == 2 for t in c.logprobs.top_logprobs), c


# the same seed gives the same answer beside others
async def together():
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=5) as a:
        one = lambda seed: a.completions.create(model=model, prompt="a", max_tokens=30, seed=seed, temperature=1.5)
        return [r.choices[0].text for r in await asyncio.gather(*(one(i % 2) for i in range(6)))]


texts = asyncio.run(together())
assert texts[::2] == [texts[0]] * 3 and texts[1::2] == [texts[1]] * 3 and texts[0] != texts[1], texts

# what is refused
create = client.chat.completions.create
refused(openai.BadRequestError, lambda: create(model=model, messages=ask, n=2), param="n", code="unsupported_parameter", type="invalid_request_error")
refused(openai.BadRequestError, lambda: create(model=model, messages=ask, temperature=3), param="temperature", code="invalid_value")
refused(openai.BadRequestError, lambda: create(model=model, messages=ask, max_tokens=10**9), code="context_length_exceeded")
refused(openai.BadRequestError, lambda: create(model=model, messages=[]), param="messages")
refused(openai.NotFoundError, lambda: create(model="none", messages=ask), code="model_not_found")
other = openai.OpenAI(base_url=url, api_key="another key of 16", max_retries=0)
refused(openai.AuthenticationError, other.models.list, code="invalid_api_key", status_code=401)


# too many requests: those that were taken are answered
async def many():
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as a:
        one = lambda: a.completions.create(model=model, prompt="a", max_tokens=4000, temperature=2)
        return await asyncio.gather(*(one() for _ in range(60)), return_exceptions=True)


results = asyncio.run(many())
limited = [e for e in results if isinstance(e, Exception)]
assert 0 < len(limited) < 60 and all(isinstance(e, openai.RateLimitError) and e.code == "rate_limit_exceeded" for e in limited), results
assert client.completions.create(model=model, prompt="a", max_tokens=2).usage.completion_tokens > 0  # and the server goes on
print("served")
