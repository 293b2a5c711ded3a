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
	return decoderKinds.read(part, depth)
}

func init() {
	decoderKinds.sequence("decoders")
	decoderKinds.add("ByteLevel", func(part json.RawMessage) ([]decoder, error) {
		return []decoder{byteDecoder{}}, read(part, new(byteLevelFile))
	})
	decoderKinds.add("ByteFallback", func(part json.RawMessage) ([]decoder, error) { return simple[decoder](part, byteFallback{}) })
	decoderKinds.add("Fuse", func(part json.RawMessage) ([]decoder, error) { return simple[decoder](part, fuse{}) })
	decoderKinds.add("Metaspace", func(part json.RawMessage) ([]decoder, error) {
		m, err := readMetaspace(part)
		return []decoder{m}, err
	})
	decoderKinds.add("Replace", func(part json.RawMessage) ([]decoder, error) {
		r, err := readReplace(part)
		return []decoder{replaceDecoder{r}}, err
	})
	decoderKinds.add("Strip", func(part json.RawMessage) ([]decoder, error) {
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
	})
	decoderKinds.add("BPEDecoder", func(part json.RawMessage) ([]decoder, error) {
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
	})
}
