package meter

import "strings"

// LayerOf returns the part of a model to which a parameter belongs. parameter is the name in published files or in
// PEFT's adapter files. If the name has the number of a layer, LayerOf returns the number and the word before it:
// "layers.3" for "model.layers.3.mlp.up_proj.weight". Otherwise it returns the module: "lm_head" for "lm_head.weight".
// A name without a dot is returned as it is.
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
