//go:build !race

package quant8

const raceEnabled = false
