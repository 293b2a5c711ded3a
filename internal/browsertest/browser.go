//go:build unix

package browsertest

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long the browser may take for an answer.
const patience = 30 * time.Second

// Browser is a running browser with one page.
type Browser struct {
	t       testing.TB
	to      *os.File
	answers chan answer
	session string
	last    int
	Asked   []string // addresses that pages have asked for
	Errors  []string // what pages have reported
}

// answer is an answer or an event of the browser.
type answer struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Open starts the browser, which ends with the test. Without a browser in the PATH it skips the test.
func Open(t testing.TB) *Browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no chromium in PATH: pages are not looked at")
	}
	in, to, err := os.Pipe()
	require.NoError(t, err)
	from, out, err := os.Pipe()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--user-data-dir="+t.TempDir(), "about:blank")
	c.ExtraFiles = []*os.File{in, out} // 3 and 4
	c.WaitDelay = 5 * time.Second
	require.NoError(t, c.Start())
	require.NoError(t, in.Close())
	require.NoError(t, out.Close())
	b := &Browser{t: t, to: to, answers: make(chan answer, 1024)}
	go b.listen(from)
	t.Cleanup(func() {
		_, _ = fmt.Fprintf(to, `{"id":%d,"method":"Browser.close"}`+"\x00", 1<<30)
		ended := make(chan struct{})
		go func() { _ = c.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
		}
		cancel()
		<-ended
		_, _ = to.Close(), from.Close()
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Network", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// listen reads what the browser says.
func (b *Browser) listen(from *os.File) {
	defer close(b.answers)
	r := bufio.NewReaderSize(from, 1<<20)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var a answer
		if json.Unmarshal(text[:len(text)-1], &a) == nil {
			b.answers <- a
		}
	}
}

// next returns what the browser says next, and notes requests and errors.
func (b *Browser) next() answer {
	b.t.Helper()
	select {
	case a, open := <-b.answers:
		require.True(b.t, open, "the browser has ended")
		switch a.Method {
		case "Network.requestWillBeSent":
			var p struct {
				Request struct {
					URL string `json:"url"`
				} `json:"request"`
			}
			require.NoError(b.t, json.Unmarshal(a.Params, &p))
			b.Asked = append(b.Asked, p.Request.URL)
		case "Runtime.exceptionThrown", "Log.entryAdded":
			b.Errors = append(b.Errors, string(a.Params))
		}
		return a
	case <-time.After(patience):
		require.Fail(b.t, "the browser does not answer")
		return answer{}
	}
}

// call asks the browser for something.
func (b *Browser) call(method string, params any, result any) {
	b.t.Helper()
	b.last++
	request := map[string]any{"id": b.last, "method": method}
	if params != nil {
		request["params"] = params
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	text, err := json.Marshal(request)
	require.NoError(b.t, err)
	_, err = b.to.Write(append(text, 0))
	require.NoError(b.t, err)
	for {
		a := b.next()
		if a.ID != b.last {
			continue
		}
		require.Nil(b.t, a.Error, method)
		if result != nil {
			require.NoError(b.t, json.Unmarshal(a.Result, result))
		}
		return
	}
}

// Show opens a file in a window of a width in CSS pixels, with light or dark colors.
func (b *Browser) Show(path string, width int, dark bool) {
	b.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	path, err := filepath.Abs(path)
	require.NoError(b.t, err)
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]string{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.Asked, b.Errors = nil, nil
	b.call("Page.navigate", map[string]any{"url": "file://" + path}, nil)
	for b.next().Method != "Page.loadEventFired" {
	}
}

// Eval returns what an expression of JavaScript is worth.
func (b *Browser) Eval(expression string, result any) {
	b.t.Helper()
	var r struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	require.Empty(b.t, string(r.Exception))
	require.NoError(b.t, json.Unmarshal(r.Result.Value, result))
}

// Picture writes a picture of the whole page, as PNG.
func (b *Browser) Picture(path string) {
	b.t.Helper()
	var r struct {
		Data string `json:"data"`
	}
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &r)
	png, err := base64.StdEncoding.DecodeString(r.Data)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(path, png, 0o644))
}

// Check opens a report in two widths and two color schemes, and fails the test unless all of it can be read: see page.js.
// Pictures go to the folder that SNUG_PICTURES names, if it is set.
func (b *Browser) Check(path string) {
	b.t.Helper()
	for _, width := range []int{400, 1280} {
		for _, dark := range []bool{false, true} {
			b.Show(path, width, dark)
			var problems []string
			b.Eval(fmt.Sprintf("(%s)(%t)", script, dark), &problems)
			require.Empty(b.t, problems, "%s, %d pixels wide, dark %t", path, width, dark)
			require.Empty(b.t, b.Errors)
			require.Len(b.t, b.Asked, 1, "no request but that of the page: %v", b.Asked)
			if folder := os.Getenv("SNUG_PICTURES"); folder != "" {
				b.Eval(`document.querySelectorAll("details").forEach((d) => { d.open = false }), 0`, new(int))
				scheme := map[bool]string{false: "light", true: "dark"}[dark]
				b.Picture(filepath.Join(folder, fmt.Sprintf("%s-%s-%d-%s.png", strings.ReplaceAll(b.t.Name(), "/", "-"), strings.TrimSuffix(filepath.Base(path), ".html"), width, scheme)))
			}
		}
	}
}
