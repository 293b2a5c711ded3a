package plan

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/snug-ml/snug/internal/picture"
	"github.com/snug-ml/snug/meter"
)

// WriteTable writes the plan as text: the bytes of each component on the device without
// techniques and with the plan, and the bytes on the host and on disk; the limit, and the
// rates by which times are predicted; and the choices, each with the bytes of the device
// and of its activations if this choice alone were undone. It ends with the lines of
// [Plan.Explain].
func (p Plan) WriteTable(w io.Writer) error {
	if w == nil {
		return errNoWriter
	}
	var b strings.Builder
	t := p.Task
	samples := "samples"
	if t.Model.Context > 0 {
		samples = fmt.Sprintf("sequences of %d tokens", t.Model.Context)
	}
	if n := t.Model.Sequences; n > 1 {
		samples = fmt.Sprintf("samples of %d sequences of %d tokens", n, t.Model.Context)
	}
	micro := "1 micro-batch"
	if p.Run.Window > 1 {
		micro = fmt.Sprintf("%d micro-batches of at most %d", p.Run.Window, p.Run.Micro)
	}
	fmt.Fprintf(&b, "%s, %d parameters%s, on %s: %d %s a step in %s\n\n",
		t.Model.Name, t.Model.Parameters(), t.adapters(), t.Device.Name, t.Batch, samples, micro)
	p.components(&b)
	limit := "the limit is " + meter.FormatBytes(p.Limit)
	if p.Limit >= unlimited {
		limit = "there is no limit"
	}
	fmt.Fprintf(&b, "\n%s; a step takes about %s, without techniques %s, at the speed of %s:\n%s\n\n",
		limit, picture.Seconds(p.Seconds), picture.Seconds(p.Without.Seconds), t.Device.Name, t.Device.rates())
	if t.Ranks > 1 {
		fmt.Fprintf(&b, "each of %d ranks sends %s a step, and waits %s for the others: %.3g GB/s, %s a message\n\n",
			t.Ranks, meter.FormatBytes(p.Sent), picture.Seconds(p.Waits), t.Device.Network/1e9, picture.Seconds(t.Device.Latency))
	}
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "instead\tdevice\tactivations\tstep\t")
	for _, c := range p.Choices {
		if c.Saves != 0 {
			d := c.Without.Peak[meter.OnDevice]
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t\n", c.Undone, meter.FormatBytes(d.Total()), meter.FormatBytes(d[meter.Activations]), picture.Seconds(c.Without.Seconds))
		}
	}
	d := p.Peak[meter.OnDevice]
	fmt.Fprintf(tw, "no technique\t%s\t%s\t%s\t\n", meter.FormatBytes(p.Without.Peak[meter.OnDevice].Total()),
		meter.FormatBytes(p.Without.Peak[meter.OnDevice][meter.Activations]), picture.Seconds(p.Without.Seconds))
	fmt.Fprintf(tw, "(the plan)\t%s\t%s\t%s\t\n", meter.FormatBytes(d.Total()), meter.FormatBytes(d[meter.Activations]), picture.Seconds(p.Seconds))
	if err := tw.Flush(); err != nil {
		return err
	}
	b.WriteByte('\n')
	for _, line := range p.reasons() {
		fmt.Fprintln(&b, line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// adapters says what is trained if it is not the model.
func (t Task) adapters() string {
	if t.Rank == 0 {
		return ""
	}
	_, trained, _ := t.counts()
	beside := t.besideLen(true)
	if own := t.besideLen(false); own != beside {
		return fmt.Sprintf(", %d of adapters and %d of modules beside the model", trained-beside, beside-own)
	}
	return fmt.Sprintf(" and %d of adapters", trained-beside)
}

// rates gives the rates by which times are predicted.
func (d Device) rates() string {
	return fmt.Sprintf("%.3g TFLOP/s in f32, %.3g in 16 bits, %.0f GB/s of memory, %.3g of the link, %.3g of the disk",
		d.F32/1e12, d.F16/1e12, d.Bandwidth/1e9, d.Link/1e9, d.DiskRate/1e9)
}

// components writes the table of components.
func (p Plan) components(b *strings.Builder) {
	tw := tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
	var tiers []meter.Tier
	head := "\twithout\twith\tshare\t"
	for tier := meter.OnHost; tier < meter.Tiers; tier++ {
		if p.Peak[tier].Total() > 0 {
			tiers, head = append(tiers, tier), head+"on "+tier.String()+"\t"
		}
	}
	fmt.Fprintln(tw, head)
	row := func(name string, value func(b meter.Bytes) int64) {
		without, with := value(p.Without.Peak[meter.OnDevice]), value(p.Peak[meter.OnDevice])
		share := "–"
		if without > 0 {
			share = fmt.Sprintf("%.1f %%", 100*float64(with)/float64(without))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t", name, meter.FormatBytes(without), meter.FormatBytes(with), share)
		for _, tier := range tiers {
			fmt.Fprintf(tw, "%s\t", meter.FormatBytes(value(p.Peak[tier])))
		}
		fmt.Fprintln(tw)
	}
	for c := range meter.Components {
		row(c.String(), func(b meter.Bytes) int64 { return b[c] })
	}
	row("total", meter.Bytes.Total)
	tw.Flush() // to a Builder, which does not fail
}
