"""Makes the folder tune: small models of images and text as transformers saves them, with their processors, data that has images, and
what transformers computes of it.

Python 3.13, transformers 5.24.0, torch 2.15.0, torchvision, tokenizers, pillow, safetensors, num2words, peft:

    python vision/testdata/tune.py [DIR]                # makes the folder, or DIR
    python vision/testdata/tune.py adapter MODEL DIR    # PEFT loads what snug tune wrote to DIR, and prints the loss of the data

tune/NAME has the files of save_pretrained, weights in bfloat16, and golden.json: the tokens of each row of data.jsonl, which of them are
learned, and the mean loss of those, in float64.
"""

import json
import pathlib
import shutil
import sys

import tokenizers
import torch
import transformers
from PIL import Image

HERE = pathlib.Path(__file__).parent
WORDS = "what is this a red green blue dark bright square here are two images and of them one says nothing with color it".split()
TEXT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=24, head_dim=8)
TOWER = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4)
HALF = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)

TURNS = """{% for m in messages %}<|{{ m['role'] }}|>{% for c in m['content'] %}{% if c['type'] == 'image' %}IMAGE{% else %}\
{{ c['text'] }}{% endif %}{% endfor %}</s>
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
FIRST = """{% for m in messages %}{{ m['role'].upper() + ':' }}{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}\
{{ ' <image>\n' }}{% endfor %}{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ ' ' + c['text'] }}{% endfor %}\
{{ '</s>' if m['role'] == 'assistant' else ' ' }}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""


def tokenizer(specials, template):
    """A tokenizer of words and bytes."""
    names = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", *specials]
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=names, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator([" ".join(WORDS)] * 8, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=template, extra_special_tokens=specials)


def families():
    t = transformers
    tok = tokenizer({"image_token": "<image>"}, FIRST)
    tok.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])  # as LLaVA's
    image = tok.convert_tokens_to_ids("<image>")
    yield "llava", t.LlavaForConditionalGeneration(t.LlavaConfig(
        text_config=dict(model_type="llama", vocab_size=len(tok), **TEXT), vision_config=dict(model_type="clip_vision_model", **TOWER),
        image_token_index=image, image_seq_length=9)), t.LlavaProcessor(
            t.CLIPImageProcessor(size=dict(shortest_edge=12), crop_size=dict(height=12, width=12)), tok, patch_size=4,
            vision_feature_select_strategy="default", num_additional_image_tokens=1, chat_template=FIRST)
    yield "llava_next", t.LlavaNextForConditionalGeneration(t.LlavaNextConfig(
        text_config=dict(model_type="llama", vocab_size=len(tok), **TEXT), vision_config=dict(model_type="clip_vision_model", **TOWER),
        image_token_index=image, image_grid_pinpoints=[[12, 24], [24, 12], [24, 24]])), t.LlavaNextProcessor(
            t.LlavaNextImageProcessor(size=dict(shortest_edge=12), crop_size=dict(height=12, width=12), image_grid_pinpoints=[[12, 24], [24, 12], [24, 24]]), tok,
            patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1, chat_template=FIRST)
    tok = tokenizer({"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
                    TURNS.replace("IMAGE", "<start_of_image>"))
    square = dict(TOWER, model_type="siglip_vision_model", image_size=16, vision_use_head=False)
    yield "gemma3", t.Gemma3ForConditionalGeneration(t.Gemma3Config(
        text_config=dict(TEXT, vocab_size=len(tok), layer_types=["sliding_attention", "full_attention"], sliding_window=64, query_pre_attn_scalar=8),
        vision_config=square, image_token_index=tok.convert_tokens_to_ids("<image_soft_token>"), mm_tokens_per_image=4,
        boi_token_index=tok.convert_tokens_to_ids("<start_of_image>"), eoi_token_index=tok.convert_tokens_to_ids("<end_of_image>"))), t.Gemma3Processor(
            t.Gemma3ImageProcessor(size=dict(height=16, width=16), **HALF), tok, image_seq_length=4, chat_template=TURNS.replace("IMAGE", "<start_of_image>"))


    tok = tokenizer({"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"},
                    TURNS.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"))
    ids = {n + "_id": tok.convert_tokens_to_ids(f"<|{s}|>") for n, s in dict(
        image_token="image_pad", video_token="video_pad", vision_start_token="vision_start", vision_end_token="vision_end").items()}
    text = dict(TEXT, vocab_size=len(tok), rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2]))
    processor = t.Qwen2_5_VLProcessor(
        t.Qwen2VLImageProcessor(patch_size=2, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=64, longest_edge=256)), tok,
        video_processor=t.Qwen2VLVideoProcessor(patch_size=2, merge_size=2), chat_template=TURNS.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"))
    yield "qwen2_5_vl", t.Qwen2_5_VLForConditionalGeneration(t.Qwen2_5_VLConfig(
        text_config=text, vision_config=dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=2, spatial_merge_size=2,
                                             temporal_patch_size=2, window_size=8, fullatt_block_indexes=[1], out_hidden_size=16), **ids)), processor
    text = dict(text, rope_parameters=dict(text["rope_parameters"], mrope_section=[2, 1, 1], mrope_interleaved=True))
    yield "qwen3_vl", t.Qwen3VLForConditionalGeneration(t.Qwen3VLConfig(
        text_config=text, vision_config=dict(depth=3, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=2, spatial_merge_size=2, temporal_patch_size=2,
                                             num_position_embeddings=16, deepstack_visual_indexes=[0, 1], out_hidden_size=16), **ids)), t.Qwen3VLProcessor(
        processor.image_processor, tok, video_processor=t.Qwen3VLVideoProcessor(patch_size=2, merge_size=2), chat_template=processor.chat_template)
    tiles = [f"<row_{i}_col_{j}>" for i in range(1, 3) for j in range(1, 3)]
    tok = tokenizer({"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}, TURNS.replace("IMAGE", "<image>"))
    tok.add_tokens(tiles + ["<end_of_utterance>"], special_tokens=True)
    yield "smolvlm", t.SmolVLMForConditionalGeneration(t.SmolVLMConfig(
        text_config=dict(TEXT, model_type="llama", vocab_size=len(tok), tie_word_embeddings=False), scale_factor=2, image_token_id=tok.convert_tokens_to_ids("<image>"),
        vision_config=dict(TOWER, model_type="smolvlm_vision", image_size=16), pad_token_id=0)), t.SmolVLMProcessor(
            t.SmolVLMImageProcessor(size=dict(longest_edge=32), max_image_size=dict(longest_edge=16), **HALF), tok,
            t.SmolVLMVideoProcessor(size=dict(longest_edge=32), max_image_size=dict(longest_edge=16)), image_seq_len=4, chat_template=TURNS.replace("IMAGE", "<image>"))
    tok = tokenizer({"image_token": "<image>"}, None)
    yield "paligemma", t.PaliGemmaForConditionalGeneration(t.PaliGemmaConfig(
        text_config=dict(TEXT, model_type="gemma", vocab_size=len(tok)), vision_config=dict(square, num_image_tokens=16), projection_dim=16,
        image_token_index=tok.convert_tokens_to_ids("<image>"))), t.PaliGemmaProcessor(
            t.SiglipImageProcessor(size=dict(height=16, width=16), image_seq_length=16, **HALF), tok)


COLORS = dict(red=(220, 40, 30), green=(30, 200, 60), blue=(20, 60, 230), dark=(30, 30, 40), bright=(240, 240, 230))


def data(folder):
    """Ten images, and rows in the forms that people write."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for i in range(10):
        name, color = list(COLORS.items())[i % 5]
        m = Image.new("RGB", (16 + 3 * i, 23 - i), color)
        for x in range(m.width):
            m.putpixel((x, i), (7 * x % 256, 31 * i % 256, 99))
        m.save(folder / f"{i}.png")
        names.append(name)
    rows = []
    for i in range(8):
        image = dict(type="image", path=f"{i}.png")
        if i == 3:  # an image and a text in turn
            user = [image, dict(type="text", text="here is one"), dict(type="image", path="8.png"), dict(type="text", text="what are them")]
        else:
            user = [image, dict(type="text", text="what color is this")]
        rows.append(dict(messages=[dict(role="user", content=user), dict(role="assistant", content=[dict(type="text", text=f"a {names[i]} square")])]))
    two = [dict(role="user", content=[dict(type="text", text="what is here"), dict(type="image", path="9.png")]),
           dict(role="assistant", content=[dict(type="text", text="one bright square")]),
           dict(role="user", content=[dict(type="text", text="and this")]), dict(role="assistant", content=[dict(type="text", text="nothing")])]
    rows.append(dict(messages=two))
    prompts = [dict(image=f"{i}.png", prompt="what color is this", completion=f"a {names[i]} square") for i in range(9)]
    prompts.append(dict(images=["8.png", "9.png"], prompt="what are them", completion="one bright"))
    for name, written in ("data.jsonl", rows), ("prompts.jsonl", prompts):
        (folder / name).write_text("".join(json.dumps(r) + "\n" for r in written))


def samples(folder, p):
    """The processor's inputs of each row, and which tokens are learned."""
    if not p.chat_template:
        for line in open(folder / "prompts.jsonl"):
            row = json.loads(line)
            images = [Image.open(folder / name) for name in row.get("images") or [row["image"]]]
            inputs = p(text="<image>" * len(images) + row["prompt"], images=[images], suffix=row["completion"], return_tensors="pt")
            inputs.pop("labels")
            yield inputs, inputs["token_type_ids"]
        return
    for line in open(folder / "data.jsonl"):
        messages = json.loads(line)["messages"]
        images = [Image.open(folder / c["path"]) for m in messages for c in m["content"] if c["type"] == "image"]
        whole = p.apply_chat_template(messages, tokenize=False)

        def tokens(text):  # as apply_chat_template of processors has them
            n = text.count(getattr(p, "boi_token", p.image_token) or p.image_token)
            return p(text=text, images=images[:n] or None, return_tensors="pt", add_special_tokens=not text.startswith(p.tokenizer.bos_token))

        inputs = tokens(whole)
        learned = torch.zeros_like(inputs["input_ids"])
        for i, m in enumerate(messages):
            if m["role"] == "assistant":
                begin = tokens(p.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True))["input_ids"].shape[1]
                end = tokens(p.apply_chat_template(messages[:i + 1], tokenize=False))["input_ids"].shape[1]
                ids = inputs["input_ids"][0, begin:end].tolist()
                learned[0, begin:begin + ids.index(p.tokenizer.eos_token_id) + 1] = 1
        yield inputs, learned


def losses(folder, m, p):
    total, count, out = 0.0, 0, []
    for inputs, learned in samples(folder, p):
        with torch.no_grad():
            logits = m(**{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}).logits[0, :-1]
        ids, is_learned = inputs["input_ids"][0], learned[0, 1:].bool()
        loss = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")[is_learned]
        total, count = total + loss.sum().item(), count + int(is_learned.sum())
        out.append(dict(tokens=ids.tolist(), learned=learned[0].tolist()))
    return total / count, out


def answer(folder, m, p):
    """The text that the model writes of an image."""
    if not p.chat_template:
        inputs = p(text="<image>what color is this", images=[Image.open(folder / "4.png")], return_tensors="pt")
    else:
        user = dict(role="user", content=[dict(type="image"), dict(type="text", text="what color is this")])
        text = p.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
        inputs = p(text=text, images=[Image.open(folder / "4.png")], return_tensors="pt", add_special_tokens=not text.startswith(p.tokenizer.bos_token))
    n = inputs["input_ids"].shape[1]
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    ids = m.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=p.tokenizer.eos_token_id, pad_token_id=0)[0, n:]
    return p.tokenizer.decode(ids, skip_special_tokens=True)


def make(folder):
    data(folder)
    for name, m, p in families():
        torch.manual_seed(len(name))
        with torch.no_grad():
            for n, w in sorted(m.named_parameters()):
                w.copy_((torch.randn(w.shape) * (0.02 if "norm" in n else 0.3) + ("norm" in n and n.endswith("weight"))).to(torch.bfloat16))
        shutil.rmtree(folder / name, ignore_errors=True)
        m.to(torch.bfloat16).save_pretrained(folder / name)
        p.save_pretrained(folder / name)
        m = type(m).from_pretrained(folder / name, dtype=torch.float64)  # the frequencies of ropes anew
        loss, rows = losses(folder, m.eval(), p)
        out = dict(data="data.jsonl" if p.chat_template else "prompts.jsonl", loss=loss, samples=rows, answer=answer(folder, m, p))
        (folder / name / "golden.json").write_text(json.dumps(out))
        print(name, loss)


def adapter(model, folder):
    import peft
    p = transformers.AutoProcessor.from_pretrained(model)
    m = transformers.AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float64)
    m = peft.PeftModel.from_pretrained(m, folder).double().eval()
    print(losses(HERE / "tune", m, p)[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["adapter"]:
        adapter(*sys.argv[2:])
    else:
        make(pathlib.Path(sys.argv[1]) if sys.argv[1:] else HERE / "tune")
