package main

// The rows of this file are flags of several commands, with one meaning.

func jsonFlag(to *bool) *flagRow { return switchFlag("json", to, "write JSON instead of text") }

// floatTypes are the values of -compute, baseForms those of -base.
var (
	floatTypes = []string{"bf16", "f16", "f32"}
	baseForms  = append([]string{"bf16"}, lowForms...)
	lowForms   = []string{"nf4", "fp4", "mxfp4", "fp8", "int8"}
)

func modelFlag(to *string, help string) *flagRow { return fileFlag("model", "DIR", to, help) }

func adapterDirFlag(to *string, help string) *flagRow {
	return fileFlag("adapter", "DIR", to, help).inOne("or snug merge, which merges several")
}

func deviceFlag(to *string, further string) *flagRow {
	return textFlag("device", "NAME", to, "where the model is and computes: cpu (default), or cuda:0, hip:0 or metal:0 in a program built with that tag"+further)
}

func computeFlag(to *string, help string) *flagRow {
	return wordFlag("compute", "TYPE", to, floatTypes, help)
}

func baseFlag(name string, to *string, forms []string, help string) *flagRow {
	return wordFlag(name, "FORM", to, forms, help)
}

func templateFlag(to *string) *flagRow {
	return textFlag("template", "NAME", to, "name of one of the model's chat templates; default: the one without a name, and tool_use, if there is one, where there are tools")
}

func copyLinksFlag(to *bool, help string) *flagRow { return switchFlag("copy-links", to, help) }

func outputFlag(arg string, to *string, help string) *flagRow { return fileFlag("o", arg, to, help) }

// batchFlag is the flag of the samples of a step, which plan and tune take alike.
func batchFlag(to *int, help string) *flagRow {
	return countFlag("batch", "N", to, 8, 1, maxBatch, help+"; default 8")
}

// reportFlag is the flag of a page. help says what the page has.
func reportFlag(to *string, help string) *flagRow {
	return fileFlag("report", "FILE.html", to, "also write a page with pictures: "+help)
}

// shardHelp says what -shard divides.
const shardHelp = "replicate (nothing); state (of the optimizer, and master weights, ZeRO-1); gradients (state and gradients, ZeRO-2); " +
	"weights (the model's matrices too, ZeRO-3; under adapters all gradients stay on each rank)"
