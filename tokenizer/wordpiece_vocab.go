package tokenizer

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/files"
)

// bertClasses are the classes of transformers that a vocab.txt is of, and the model_types of the models that have them unless their
// tokenizer_config.json says another.
var bertClasses = map[string]string{
	"BertTokenizer": "align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino layoutlm " +
		"megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm retribert squeezebert tvp vilt visual_bert",
	"DistilBertTokenizer": "", "ElectraTokenizer": "", "MobileBertTokenizer": "mobilebert",
}

func init() {
	for name, models := range bertClasses {
		addClass(name, models)
	}
	addForm(form{order: 4, files: [][]string{{"vocab.txt"}}, open: openBert, suits: func(folder string, f configFile) bool {
		_, known := bertClasses[f.classOf(folder)]
		return known
	}})
}

// openBert builds the tokenizer of vocab.txt, which has a token in each line.
func openBert(folder string, names []string, c *Config, f configFile) (*Tokenizer, error) {
	path := filepath.Join(folder, names[0])
	data, err := readFile(path, files.Vocabulary)
	if err != nil {
		return nil, err
	}
	model := &wordPieceFile{Type: "WordPiece", Unknown: "[UNK]", Prefix: "##", Most: 100, Vocab: map[string]uint32{}}
	n := 0
	for line := range strings.Lines(string(data)) {
		token := strings.TrimRight(line, "\r\n")
		if !utf8.ValidString(token) {
			return nil, fmt.Errorf("tokenizer: %s: %w", path, damaged("line %d is %.100q, want UTF-8", n+1, token))
		}
		model.Vocab[token] = uint32(n) // of a token in several lines the last one counts, as in transformers
		n++
	}
	c.standard([]SpecialToken{{"unk_token", "[UNK]"}, {"sep_token", "[SEP]"}, {"pad_token", "[PAD]"}, {"cls_token", "[CLS]"}, {"mask_token", "[MASK]"}}, f, nil)
	model.Unknown = c.token("unk_token")
	accents := "null"
	if f.Accents != nil {
		accents = fmt.Sprint(*f.Accents)
	}
	file := &file{Model: modelPart{model}, PreTokenizer: []byte(`{"type":"BertPreTokenizer"}`), Decoder: []byte(`{"type":"WordPiece","prefix":"##","cleanup":true}`)}
	file.Normalizer = fmt.Appendf(nil, `{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":%t,"strip_accents":%s,"lowercase":%t}`,
		f.Ideographs == nil || *f.Ideographs, accents, f.Lower == nil || *f.Lower)
	known := func(token string) (uint32, bool) {
		id, ok := model.Vocab[token]
		return id, ok
	}
	if err := file.addTokens(folder, c, f, known, len(model.Vocab)); err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", folder, err)
	}
	for _, a := range file.AddedTokens { // transformers gives both tokens the id
		if _, has := model.Vocab[a.Content]; !has && n > len(model.Vocab) {
			for token, id := range model.Vocab {
				if id == a.ID && token != "" {
					return nil, fmt.Errorf("tokenizer: %s: %w", path, damaged("lines that come twice, so that the added token %.100q would have the id %d of %.100q", a.Content, id, token))
				}
			}
		}
	}
	t, err := file.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	first, okFirst := t.ID(c.token("cls_token"))
	last, okLast := t.ID(c.token("sep_token"))
	if !okFirst || !okLast {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, damaged("no tokens %.40q and %.40q, which are around texts", c.token("cls_token"), c.token("sep_token")))
	}
	t.post = []postProcessor{template{{ids: []int32{first}}, {text: true}, {ids: []int32{last}}}}
	return t, nil
}
