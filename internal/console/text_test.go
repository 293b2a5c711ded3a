package console

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

func TestCount(t *testing.T) {
	require.Equal(t, "1 micro-batch, 2 micro-batches, 0 steps", Count(1, "micro-batch")+", "+Count(2, "micro-batch")+", "+Count(0, "step"))
}

func TestPercent(t *testing.T) {
	require.Equal(t, "12.5 % –", Percent(1, 8)+" "+Percent(1, 0))
}

func TestSentence(t *testing.T) {
	require.Equal(t, "a is damaged: b; move it away", Sentence(fmt.Errorf("a is damaged: b: %w; move it away", snug.ErrCorrupt)))
	require.Equal(t, "step 3: w[1] = NaN", Sentence(fmt.Errorf("step 3: w[1] = NaN: %w", snug.ErrNonFinite)))
	require.Equal(t, snug.ErrNoMemory.Error(), Sentence(snug.ErrNoMemory))
}

// Without a terminal, the first, the last and every tenth part of the steps have a line.
func TestPlainProgress(t *testing.T) {
	var out, errs bytes.Buffer
	p := NewProgress(&out, &errs, 20)
	for step := 1; step <= 20; step++ {
		p.Step(Shown{step, 1, 2, "3 B"})
	}
	p.Note("skipped")
	p.End()
	require.Empty(t, errs.String())
	require.Equal(t, 12, bytes.Count(out.Bytes(), []byte("\n")))
	require.Regexp(t, `^step 1/20  loss 1.0000  2 tokens/s  3 B\nstep 2/20  loss 1[^$]*step 4/20[^$]*step 20/20  loss 1.0000  2 tokens/s  3 B\nskipped\n$`, out.String())
}
