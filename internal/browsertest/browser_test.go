// Package browsertest opens the status page in a real browser, headless Chromium, against the built
// program on a simulated node whose clock the tests step. It is a module of its own so that the
// program does not depend on a browser's protocol.
package browsertest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Keys that have no character.
const (
	enter  = kb.Enter
	escape = kb.Escape
	left   = kb.ArrowLeft
)

// pageTimeout is how long a page may take for what a test waits for.
const pageTimeout = 30 * time.Second

// browser is a tab of a headless Chromium. Its methods fail the test.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	messages []string // of the console, violations of the policy among them
}

// openBrowser starts a browser, or skips the test if there is none.
func openBrowser(t *testing.T, width, height int) *browser {
	t.Helper()

	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("NOT TESTED: the page in a browser: there is no chromium")
	}

	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.NoSandbox, // tests may run as root
		chromedp.WindowSize(width, height),
	)...)
	t.Cleanup(cancel)

	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)

	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.observe); err != nil { // it starts the browser
		t.Fatal(err)
	}

	b.run(behaveAsIfFocused)

	return b
}

// observe collects what the browser has to say about the page.
func (b *browser) observe(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()

	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if thrown := e.ExceptionDetails.Exception; thrown != nil {
			text += " " + thrown.Description
		}

		b.messages = append(b.messages, text)
	case *runtime.EventConsoleAPICalled:
		b.messages = append(b.messages, fmt.Sprintf("%s: %v", e.Type, e.Args))
	case *log.EventEntryAdded:
		b.messages = append(b.messages, fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

// wantSilence fails the test if the console has a message, other than those that contain one of the
// given texts.
func (b *browser) wantSilence(but ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()

messages:
	for _, m := range b.messages {
		for _, text := range but {
			if strings.Contains(m, text) {
				continue messages
			}
		}

		b.t.Errorf("the console says: %s", m)
	}
}

// run runs actions, which must end within pageTimeout.
func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()

	ctx, cancel := context.WithTimeout(b.ctx, pageTimeout)
	defer cancel()

	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// open loads a page.
func (b *browser) open(url string) {
	b.t.Helper()
	b.run(chromedp.Navigate(url), chromedp.WaitReady("#node"))
}

// eval returns the value of an expression as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()

	ctx, cancel := context.WithTimeout(b.ctx, pageTimeout)
	defer cancel()

	value, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}

	return value
}

// await waits until an expression has a value.
func (b *browser) await(expression, want string) {
	b.t.Helper()

	var last string

	for begun := time.Now(); time.Since(begun) < pageTimeout; {
		if last = b.eval(expression); last == want {
			return
		}

		time.Sleep(50 * time.Millisecond) // the browser does not say when it has drawn
	}

	b.t.Fatalf("%s: %q, want %q", expression, last, want)
}

// press presses keys.
func (b *browser) press(keys string) {
	b.t.Helper()
	b.run(chromedp.KeyEvent(keys))
}

// behaveAsIfFocused lets elements get the focus although the tab has no window.
func behaveAsIfFocused(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
	_, err := cdp.Call(ctx, t, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})

	return chromedp.Void{}, err
}

// withoutScript turns the page's own scripts off.
func withoutScript(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
	_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})

	return chromedp.Void{}, err
}

// pressSlash presses the key /. Other than press it lets the page prevent that the character is
// entered.
func (b *browser) pressSlash() {
	b.t.Helper()
	b.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, input.DispatchKeyEvent, input.DispatchKeyEventParams{
			Type: input.DispatchKeyEventTypeKeyDown, Key: "/", Code: "Slash", Text: "/",
		})

		return err
	}))
}

// preferScheme lets the reader prefer a light or a dark page.
func preferScheme(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})

		return err
	})
}
