package transformer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// Write writes config.json into a folder. It makes a missing folder, and replaces an old file as a whole. transformers
// 4 and 5 read the file: it has rope_theta, rope_scaling and torch_dtype, and has rope_parameters only for a rope that
// these cannot describe. It has every field of the family, so that it does not depend on the defaults of a version.
// Ignored and Unread are not written.
//
// The error wraps [snug.ErrConfig] when c is not valid, when its family has no field for
// something (such as a cap of logits in llama), and when c has a Whole, whose file also
// describes the part for images. Clear Whole to write the text model alone.
func (c *Config) Write(dir string) (err error) {
	defer fault.Named(&err, "transformer: Write")
	text, err := c.encode()
	if err != nil {
		return err
	}
	if _, err := files.Make(dir); err != nil {
		return err
	}
	return files.Replace(filepath.Join(dir, configName), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// encode returns the text of config.json. It reads the text again, and returns an error if a field differs: the family
// has no field for it.
func (c *Config) encode() ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.family().fields == nil {
		return nil, bad("Family", "%q, which no config.json can say", c.Family)
	}
	if c.Whole != "" {
		return nil, bad("Whole", "%q, want none: the file of the whole model also describes images", c.Whole)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(c.members()); err != nil {
		return nil, err
	}
	again, err := parseConfig(b.Bytes())
	if err != nil {
		return nil, err
	}
	if err := c.differs(*again); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// differs returns an error for the first field in which c is not what its family can have.
func (c *Config) differs(can Config) error {
	if name, have, want := difference(reflect.ValueOf(*c), reflect.ValueOf(can)); name != "" {
		return bad(name, "%.80s, and the family %q can only have %.80s", fmt.Sprint(have), c.Family, fmt.Sprint(want))
	}
	return nil
}

// difference returns the name and the values of the first field in which two Configs, or two of their structs, differ.
// Scales that the file has in another form may differ by rounding.
func difference(a, b reflect.Value) (name string, x, y any) {
	for i := range a.NumField() {
		if !a.Type().Field(i).IsExported() { // of a folder, and not of config.json
			continue
		}
		x, y = a.Field(i).Interface(), b.Field(i).Interface()
		switch name = a.Type().Field(i).Name; name {
		case "Ignored", "Unread":
			continue
		case "ScoreScale", "LogitScale":
			if s := a.Field(i).Float(); math.Abs(s-b.Field(i).Float()) <= 1e-12*s {
				continue
			}
		case "EOS", "Windows":
			if fmt.Sprint(x) == fmt.Sprint(y) {
				continue
			}
		case "Dense": // which may be nil if it has no true
			if !slices.Contains(x.([]bool), true) && !slices.Contains(y.([]bool), true) {
				continue
			}
		case "Experts":
			if inner, x, y := difference(a.Field(i), b.Field(i)); inner != "" {
				return name + "." + inner, x, y
			}
			continue
		}
		if !reflect.DeepEqual(x, y) {
			return name, x, y
		}
	}
	return "", nil, nil
}

// members returns the object of config.json.
func (c *Config) members() map[string]any {
	fam, own := c.family(), *c
	m := map[string]any{
		"model_type": fam.name, "architectures": []string{fam.architecture()},
		"initializer_range": strictjson.Float(c.InitStd), "tie_word_embeddings": c.Tied,
		"bos_token_id": token(c.BOS), "eos_token_id": ends(c.EOS), "pad_token_id": token(c.Pad),
	}
	if name := map[snug.DType]string{snug.F32: "float32", snug.F16: "float16", snug.BF16: "bfloat16"}[c.DType]; name != "" {
		m["torch_dtype"] = name
	}
	fam.fields(&fields{out: m, std: fam.std, raw: map[string]json.RawMessage{}, taken: map[string]bool{}}, &own)
	return m
}

func token(id int) any {
	if id == -1 {
		return nil
	}
	return id
}

func ends(ids []int) any {
	switch len(ids) {
	case 0:
		return nil
	case 1:
		return ids[0]
	}
	return ids
}

// ropeMembers returns the parameters of a kind, without the base.
func ropeMembers(r Rope) map[string]any {
	m := map[string]any{"rope_type": string(r.Kind)}
	for name, value := range map[string]float64{
		"factor": r.Factor, "low_freq_factor": r.LowFreqFactor,
		"high_freq_factor": r.HighFreqFactor, "beta_fast": r.BetaFast, "beta_slow": r.BetaSlow,
		"attention_factor": r.AttentionFactor, "mscale": r.MScale, "mscale_all_dim": r.MScaleAllDim, "llama_4_scaling_beta": r.QueryScale,
	} {
		if value != 0 {
			m[name] = strictjson.Float(value)
		}
	}
	if r.OriginalPositions != 0 {
		m["original_max_position_embeddings"] = r.OriginalPositions
	}
	if r.Factors != nil {
		m["short_factor"], m["long_factor"] = r.Factors.Short, r.Factors.Long
	}
	if r.NoTruncate {
		m["truncate"] = false
	}
	if r.Sections != [3]int{} {
		m["mrope_section"] = r.Sections
	}
	if r.Spread {
		m["mrope_interleaved"] = true
	}
	return m
}
