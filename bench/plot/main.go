// Command plot draws bench/results.json: peers.svg, of lnk beside what a user
// would have instead, and growth.svg, of how figures grow.
//
// It is a module of its own, so that a library for plots is no dependency of lnk.
package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plot FOLDER, of results.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// results is what is used of the benchmark's report.
type results struct {
	Rows []struct {
		What   string
		Sample *struct{ Median float64 }
		Unit   string
		Beside []struct {
			Name   string
			Sample struct{ Median float64 }
		}
	}
	Growth []struct {
		What, Of string
		Columns  []string
		Points   []struct {
			N      int
			Values []float64
		}
	}
}

func run(folder string) error {
	data, err := os.ReadFile(filepath.Join(folder, "results.json"))
	if err != nil {
		return err
	}
	var r results
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	var panels []*plot.Plot
	for _, want := range []struct{ title, row, more string }{
		{"One download through CONNECT, GB/s", "one download through CONNECT", "more is better; *: a proxy alone, with no sandbox"},
		{"From start to end, with a proxy for one host, ms", "`run --internet-host x -- true`", "less is better"},
		{"A whole sandbox with its proxy, idle, MiB", "a whole sandbox", "less is better"},
	} {
		p, err := r.bars(want.title, want.row, want.more)
		if err != nil {
			return err
		}
		panels = append(panels, p)
	}
	if err := save(filepath.Join(folder, "peers.svg"), panels, 1, 18*vg.Centimeter, 15*vg.Centimeter); err != nil {
		return err
	}
	panels = nil
	for i := range r.Growth {
		p, err := r.lines(i)
		if err != nil {
			return err
		}
		panels = append(panels, p)
	}
	return save(filepath.Join(folder, "growth.svg"), panels, 2, 24*vg.Centimeter, vg.Length((len(panels)+1)/2)*8*vg.Centimeter)
}

var (
	ours   = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb2, A: 0xff}
	theirs = color.RGBA{R: 0xa8, G: 0xb4, B: 0xc0, A: 0xff}
	lines  = []color.Color{ours, color.RGBA{R: 0xd9, G: 0x6b, B: 0x2b, A: 0xff}, color.RGBA{R: 0x3f, G: 0x8f, B: 0x4f, A: 0xff}, color.RGBA{R: 0x7a, G: 0x55, B: 0xa3, A: 0xff}}
)

// bars draws a row, and what stands beside it.
func (r results) bars(title, row, more string) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = title
	for _, candidate := range r.Rows {
		if !strings.HasPrefix(candidate.What, row) || candidate.Sample == nil {
			continue
		}
		names, values := []string{"lnk"}, plotter.Values{candidate.Sample.Median}
		for _, b := range candidate.Beside {
			name, noSandbox := strings.CutSuffix(b.Name, ", no sandbox")
			if noSandbox {
				name += " *"
			}
			names, values = append(names, name), append(values, b.Sample.Median)
		}
		// The first is drawn on top.
		n := len(values)
		first, rest := make(plotter.Values, n), make(plotter.Values, n)
		shown := make([]string, n)
		labels := plotter.XYLabels{}
		for i, v := range values {
			at := n - 1 - i
			shown[at] = names[i] + "    " // where another font is wider
			if i == 0 {
				first[at] = v
			} else {
				rest[at] = v
			}
			labels.XYs = append(labels.XYs, plotter.XY{X: v, Y: float64(at)})
			labels.Labels = append(labels.Labels, fmt.Sprintf(" %.3g", v))
		}
		for _, b := range []struct {
			values plotter.Values
			color  color.Color
		}{{first, ours}, {rest, theirs}} {
			chart, err := plotter.NewBarChart(b.values, 10)
			if err != nil {
				return nil, err
			}
			chart.Horizontal, chart.Color, chart.LineStyle.Width = true, b.color, 0
			p.Add(chart)
		}
		drawn, err := plotter.NewLabels(labels)
		if err != nil {
			return nil, err
		}
		for i := range drawn.TextStyle {
			drawn.TextStyle[i].YAlign = text.YCenter
		}
		p.Add(drawn)
		p.NominalY(shown...)
		p.X.Min, p.X.Max = 0, p.X.Max*1.15
		p.X.Label.Text = more
		return p, nil
	}
	return nil, fmt.Errorf("there is no row %q", row)
}

// lines draws a table of growth, by powers of ten both ways: what doesn't grow
// is level, and what grows as the count does rises as it goes to the right.
func (r results) lines(i int) (*plot.Plot, error) {
	g := r.Growth[i]
	p := plot.New()
	p.Title.Text = strings.ReplaceAll(g.What, "`", "")
	p.X.Label.Text = g.Of
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	for c, column := range g.Columns {
		line := make(plotter.XYs, 0, len(g.Points))
		for _, point := range g.Points {
			if point.Values[c] > 0 { // a logarithm's
				line = append(line, plotter.XY{X: float64(point.N), Y: point.Values[c]})
			}
		}
		drawn, dots, err := plotter.NewLinePoints(line)
		if err != nil {
			return nil, err
		}
		drawn.Color, dots.Color, dots.Shape = lines[c%len(lines)], lines[c%len(lines)], draw.CircleGlyph{}
		p.Add(drawn, dots)
		p.Legend.Add(strings.ReplaceAll(column, "`", ""), drawn, dots)
	}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Max *= 30 // below the legend
	return p, nil
}

func save(path string, panels []*plot.Plot, columns int, width, height vg.Length) error {
	rows := (len(panels) + columns - 1) / columns
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, columns)
		for k := range columns {
			if at := i*columns + k; at < len(panels) {
				grid[i][k] = panels[at]
			}
		}
	}
	canvas := vgsvg.New(width, height)
	dc := draw.New(canvas)
	// Pages may be dark, and the text is black.
	dc.SetColor(color.White)
	dc.Fill(dc.Rectangle.Path())
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: vg.Centimeter, PadY: vg.Centimeter / 2, PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(12)}
	for i, line := range plot.Align(grid, tiles, dc) {
		for k, tile := range line {
			if grid[i][k] != nil {
				grid[i][k].Draw(tile)
			}
		}
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = canvas.WriteTo(file)
	return err
}
