package transformer

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/strictjson"
)

// fields are the members of one object of config.json, which are read, or written where out is not nil. A function that
// lists the members of a family says both: when they are written, there is nothing to read, and get and others return
// defaults. Each member that is read is taken once; rest deals with the others. After the first error, which fields keeps,
// all calls return defaults.
type fields struct {
	out     map[string]any
	path    string // before the names in messages
	raw     map[string]json.RawMessage
	taken   map[string]bool
	ignored *[]string // Config.Ignored
	unread  *[]string // Config.Unread
	std     defaults  // of the family
	err     error

	stored storedAs // of quantization_config
}

func newFields(text []byte, path string, c *Config) (*fields, error) {
	f := &fields{path: path, taken: map[string]bool{}, ignored: &c.Ignored, unread: &c.Unread}
	if err := strictjson.Unmarshal(text, &f.raw); err != nil {
		return nil, err
	}
	if f.raw == nil {
		return nil, errors.New("null, want an object")
	}
	return f, nil
}

// fail keeps the first error.
func (f *fields) fail(name, format string, args ...any) {
	if f.err == nil {
		f.err = bad(f.path+name, format, args...)
	}
}

// has says whether a member is there and not null.
func (f *fields) has(name string) bool {
	raw, found := f.raw[name]
	return found && !isNull(raw)
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

// get returns a member, or the default if it is not there. null is an error.
func get[T any](f *fields, name string, standard T) T {
	return getNull(f, name, standard, nil)
}

// getNull is get for a member that may be null, which is then the value none.
func getNull[T any](f *fields, name string, standard T, none *T) T {
	raw, found := f.raw[name]
	f.taken[name] = true
	switch {
	case !found:
		return standard
	case none != nil && isNull(raw):
		return *none
	}
	value := standard
	if err := strictjson.Unmarshal(raw, &value); err != nil {
		f.fail(name, "%s", plain(err))
	}
	return value
}

// plain returns the text of an error without the path of the value, which the caller adds.
func plain(err error) string { return strings.TrimPrefix(err.Error(), "the JSON document: ") }

// optional is getNull for a member whose null is the zero value.
func optional[T any](f *fields, name string, standard T) T {
	var zero T
	return getNull(f, name, standard, &zero)
}

// field reads a member into a value, or writes the value.
func field[T any](f *fields, name string, value *T, standard T) {
	f.put(name, *value)
	if f.out == nil {
		*value = get(f, name, standard)
	}
}

// loose is field for a member that may be null in a file, which is then the zero value.
func loose[T any](f *fields, name string, value *T, standard T) {
	f.put(name, *value)
	if f.out == nil {
		*value = optional(f, name, standard)
	}
}

// nullable is loose for a member whose zero value is written as null.
func nullable[T comparable](f *fields, name string, value *T, standard T) {
	loose(f, name, value, standard)
	if *value == *new(T) {
		f.put(name, nil)
	}
}

// put writes a member.
func (f *fields) put(name string, value any) {
	switch x := value.(type) {
	case float64:
		value = strictjson.Float(x)
	case []float64:
		list := make([]strictjson.Float, len(x))
		for i, v := range x {
			list[i] = strictjson.Float(v)
		}
		value = list
	}
	if f.out != nil {
		f.out[name] = value
	}
}

// alias makes a member of another name one of this name. Both may be there if they are
// equal.
func (f *fields) alias(name, other string) {
	raw, found := f.raw[other]
	if !found {
		return
	}
	f.taken[other] = true
	if own, both := f.raw[name]; both {
		if compact(own) != compact(raw) {
			f.fail(other, "%.40s, and %s is %.40s: want the same value", raw, name, own)
		}
		return
	}
	f.raw[name] = raw
}

// only takes a member that may have one value only, or null.
func (f *fields) only(name string, values ...string) {
	raw, found := f.raw[name]
	if !found {
		return
	}
	f.taken[name] = true
	if !isNull(raw) && !slices.Contains(values, compact(raw)) {
		f.fail(name, "%.60s is not supported for this family, want %s", raw, strings.Join(append(values, "null"), " or "))
	}
}

// ignore takes a member that changes nothing.
func (f *fields) ignore(name string) {
	if _, found := f.raw[name]; found {
		f.taken[name] = true
		*f.ignored = append(*f.ignored, f.path+name)
	}
}

// says takes a member that transformers does not read for the family, and that says what the model does if it has a value.
func (f *fields) says(name, value string) {
	if compact(f.raw[name]) == value {
		f.ignore(name)
	} else {
		f.notRead(name)
	}
}

// notRead takes a member that transformers does not read for the family, whatever it says. One that switches something
// off, such as false or 0, says what the model does.
func (f *fields) notRead(name string) {
	f.ignore(name)
	switch raw, found := f.raw[name]; {
	case !found:
	case slices.Contains([]string{"null", "false", "0", "0.0", `""`, "[]", "{}"}, compact(raw)):
	default:
		*f.unread = append(*f.unread, f.path+name)
	}
}

// object takes a member that is an object, nil if it is not there or null.
func (f *fields) object(name string) *fields {
	raw := optional[json.RawMessage](f, name, nil)
	if raw == nil || isNull(raw) || f.err != nil {
		return nil
	}
	in := &fields{path: f.path + name + ".", taken: map[string]bool{}, ignored: f.ignored, unread: f.unread}
	if err := strictjson.Unmarshal(raw, &in.raw); err != nil {
		f.fail(name, "%s", plain(err))
		return nil
	}
	return in
}

// rest takes the remaining members, which transformers does not read for the family: they cannot change what it computes,
// so they are ignored. Members of bookkeeping, those named and null are expected; the others are Unread.
func (f *fields) rest(also ...string) error {
	for _, name := range slices.Sorted(maps.Keys(f.raw)) {
		switch {
		case f.taken[name]:
		case bookkeeping[name] || slices.Contains(also, name) || strings.HasPrefix(name, "unsloth_") || isNull(f.raw[name]):
			f.ignore(name)
		default:
			f.notRead(name)
		}
	}
	return f.err
}

// compact returns JSON without white space; raw is valid.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return string(raw)
	}
	return b.String()
}

// bookkeeping has the fields of any family that do not matter for training: where a file comes from, other heads and
// tasks, and how transformers generates and caches. The parameters of generation are the ones that transformers itself
// removes from config.json.
var bookkeeping = func() map[string]bool {
	all := map[string]bool{}
	for _, name := range strings.Fields(`
		_name_or_path name_or_path _commit_hash transformers_version transformers.js_config model_name
		id2label label2id num_labels _num_labels problem_type finetuning_task task_specific_params
		classifier_dropout summary_activation summary_first_dropout summary_proj_to_labels
		summary_type summary_use_proj tokenizer_class prefix sep_token_id decoder_start_token_id
		is_llama_config return_dict output_attentions output_hidden_states torchscript use_bfloat16
		tf_legacy_loss chunk_size_feed_forward is_decoder gradient_checkpointing attn_implementation
		_attn_implementation _attn_implementation_autoset _attn_implementation_internal
		_flash_attn_2_enabled pretraining_tp cache_implementation use_cache n_ctx
		reorder_and_upcast_attn max_sequence_length output_past predict_special_tokens xla_device

		assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens
		diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
		encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty
		forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
		no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups
		num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
		return_dict_in_generate suppress_tokens target_lookbehind temperature top_k top_p typical_p`) {
		all[name] = true
	}
	return all
}()
