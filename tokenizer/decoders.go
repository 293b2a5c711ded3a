package tokenizer

import (
	"encoding/json"
	"unicode/utf8"
)

// readDecoder reads the decoders and says which ones get the text as one token.
func readDecoder(part json.RawMessage, depth int) ([]decoder, error) {
	all, err := readDecoders(part, depth)
	fused := false
	for i, d := range all {
		switch x := d.(type) {
		case fuse, byteDecoder:
			fused = true
			continue
		case stripDecoder:
			x.fused = fused
			all[i] = x
			continue
		case replaceDecoder:
			if x.pattern == nil && utf8.RuneCountInString(x.text) == 1 {
				continue
			}
		}
		if fused {
			all[i] = whole{d}
		}
	}
	return all, err
}

func readDecoders(part json.RawMessage, depth int) ([]decoder, error) {
	kind, err := typeOf(part)
	if err != nil || kind == "" {
		return nil, err
	}
	switch kind {
	case "Sequence":
		return sequence(part, "decoders", depth, readDecoders)
	case "ByteLevel":
		return []decoder{byteDecoder{}}, read(part, new(byteLevelFile))
	case "ByteFallback":
		return simple[decoder](part, byteFallback{})
	case "Fuse":
		return simple[decoder](part, fuse{})
	case "Metaspace":
		m, err := readMetaspace(part)
		return []decoder{m}, err
	case "Replace":
		r, err := readReplace(part)
		return []decoder{replaceDecoder{r}}, err
	case "Strip":
		var f struct {
			Type    string `json:"type"`
			Content string `json:"content"`
			Start   uint32 `json:"start"`
			Stop    uint32 `json:"stop"`
		}
		if err := read(part, &f); err != nil {
			return nil, err
		}
		if utf8.RuneCountInString(f.Content) != 1 {
			return nil, damaged("content %.40q, want one character", f.Content)
		}
		return []decoder{stripDecoder{char: f.Content, start: int(min(f.Start, maxText)), stop: int(min(f.Stop, maxText))}}, nil
	case "BPEDecoder":
		var f struct {
			Type   string `json:"type"`
			Suffix string `json:"suffix"`
		}
		if err := read(part, &f); err != nil {
			return nil, err
		}
		if f.Suffix == "" {
			return nil, refused("an empty suffix")
		}
		return []decoder{suffixDecoder{f.Suffix}}, nil
	}
	return nil, refused("type %.40q, want ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, BPEDecoder or Sequence", kind)
}
