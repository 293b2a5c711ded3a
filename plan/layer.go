package plan

import "strings"

// LayerOf returns the part of a model to which a parameter belongs, by its published name or PEFT's: the number of its
// layer with the word before it, as "layers.3" for "model.layers.3.mlp.up_proj.weight"; otherwise its module, as
// "lm_head" for "lm_head.weight"; and the name itself if it has no dot.
func LayerOf(parameter string) string {
	begin := 0 // of the part before at
	for at := 0; at < len(parameter); {
		end := at + strings.IndexByte(parameter[at:]+".", '.')
		if at > 0 && end > at && strings.Trim(parameter[at:end], "0123456789") == "" {
			return parameter[begin:end]
		}
		begin, at = at, end+1
	}
	if last := strings.LastIndexByte(parameter, '.'); last >= 0 {
		return parameter[strings.LastIndexByte(parameter[:last], '.')+1 : last]
	}
	return parameter
}
