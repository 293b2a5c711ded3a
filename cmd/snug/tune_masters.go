package main

import (
	"github.com/snug-ml/snug/amp"
)

// masterForms are the forms of master weights that -masters takes.
var masterForms = []amp.MasterForm{amp.FullMaster, amp.SplitMaster, amp.Split24Master, amp.NoMaster}

// checkMasters returns what is wrong with -masters, or nothing.
func (f *tuneFlags) checkMasters() (problem string) {
	if f.masters == "" {
		return ""
	}
	switch {
	case f.compute != "bf16" || !f.full && f.modules == "":
		return "-masters is for weights of bf16 that train, with -full or -modules-to-save"
	case f.fold:
		return "-masters does not go with -fold, which has no master weights"
	}
	return ""
}
