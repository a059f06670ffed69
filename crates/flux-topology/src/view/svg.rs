//! A topology as a drawing.

use std::fmt::Write as _;

use super::layout::{
    Cluster, GAP, GPU_HEIGHT, GPU_WIDTH, LANE, Layout, NIC_HEIGHT, NODE_GAP, Node, far_columns, layout,
};
use crate::{LinkKind, Topology};

const MARGIN: usize = 20;
const CPU_HEIGHT: usize = 24;
const SWITCH_HEIGHT: usize = 20;
/// What a character of the text of size 11 needs at most, in pixels: text is cut to fit its box.
const CHARACTER: usize = 7;

const STYLE: &str = "text{font-family:Helvetica,Arial,sans-serif;font-size:11px;fill:#1a1a1a}\
.title{font-size:15px;font-weight:bold}.name{font-weight:bold}.mid{text-anchor:middle}.small{font-size:9px}\
.node{fill:#f4f6f8;stroke:#9aa5b1}.gpu{fill:#e6f4e6;stroke:#2e7d32}.nic{fill:#fff3df;stroke:#b26a00}\
.cpu{fill:#dfe7f2;stroke:#44607f}.switch{fill:#ececec;stroke:#7a7a7a}.wire{stroke:#7a7a7a;fill:none}\
.sys{stroke:#44607f;stroke-width:2}.nvlink{stroke:#2e7d32;fill:none}.nvswitch{fill:#2e7d32}.on{fill:#fff}";

impl Topology {
    /// A drawing as SVG: NUMA nodes with their GPUs, switches and network cards, and NVLinks above them.
    ///
    /// Of several machines the first is drawn, and how many there are is written beside it. The drawing needs no
    /// other file and has a white ground.
    pub fn to_svg(&self) -> String {
        let layout = layout(self, 0, MARGIN);
        let mut svg = Svg { text: String::new(), y: MARGIN };
        let width = (layout.width + MARGIN).max(640);
        svg.heading(self, width);
        if !layout.nodes.is_empty() {
            svg.machine(self, &layout);
        }
        svg.footer(self, width);
        let height = svg.y + MARGIN / 2;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<style>{STYLE}</style>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{}</svg>\n",
            svg.text
        )
    }
}

/// The drawing as far as it is, and how far down that reaches.
struct Svg {
    text: String,
    y: usize,
}

impl Svg {
    // Writing to a String cannot fail, here and below.
    fn rect(&mut self, class: &str, (x, y): (usize, usize), (width, height): (usize, usize)) {
        let _ = writeln!(
            self.text,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\"/>"
        );
    }

    fn label(&mut self, class: &str, (x, y): (usize, usize), text: &str) {
        let text = quick_xml::escape::escape(text);
        let _ = writeln!(self.text, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>");
    }

    fn path(&mut self, class: &str, stroke: f64, path: &str) {
        let _ = writeln!(self.text, "<path class=\"{class}\" stroke-width=\"{stroke}\" d=\"{path}\"/>");
    }

    fn heading(&mut self, topology: &Topology, width: usize) {
        self.label(
            "title",
            (MARGIN, self.y + 12),
            &cut(&topology.source().to_string(), (width - 2 * MARGIN) / 9),
        );
        self.y += 30;
        let name = topology.devices().first().map_or("no GPU", |device| device.name.as_str());
        let machines = match topology.host_count() {
            1 => String::new(),
            hosts => format!("; the first of {hosts} machines"),
        };
        let gpus = topology.device_count();
        let what = match name {
            "no GPU" => name.to_owned(),
            "GPU" => format!("{gpus} GPUs{machines}"),
            name => format!("{gpus} x {name}{machines}"),
        };
        self.label("", (MARGIN, self.y), &what);
        self.y += 16;
    }

    fn machine(&mut self, topology: &Topology, layout: &Layout) {
        let nvlink = self.y;
        let node_top = match topology.nvswitch() {
            Some(true) => nvlink + 24 + 30,
            _ => nvlink + layout.lanes * LANE + if layout.lanes > 0 { 12 } else { 0 },
        };
        let gpu_y = node_top + GAP;
        let switch_y = gpu_y + GPU_HEIGHT + GAP;
        let has_switch =
            layout.nodes.iter().flat_map(|node| &node.clusters).any(|cluster| cluster.switch.is_some());
        let nic_y = switch_y + if has_switch { SWITCH_HEIGHT + GAP } else { 0 };
        let cpu_y =
            nic_y + layout.near_rows * (NIC_HEIGHT + 6) + if layout.near_rows > 0 { GAP / 2 } else { 0 };
        let far_y = cpu_y + CPU_HEIGHT + GAP;
        let bottom = far_y + layout.far_rows * (NIC_HEIGHT + 6);

        for (place, node) in layout.nodes.iter().enumerate() {
            self.rect("node", (node.x, node_top), (node.width, bottom - node_top));
            for cluster in &node.clusters {
                self.cluster(topology, cluster, [gpu_y, switch_y, nic_y, cpu_y]);
            }
            self.rect("cpu", (node.x + GAP, cpu_y), (node.width - 2 * GAP, CPU_HEIGHT));
            let title = cut(&node.title, (node.width - 3 * GAP) / CHARACTER);
            self.label("mid", (node.x + node.width / 2, cpu_y + 16), &title);
            self.far_nics(topology, node, far_y);
            if let Some(next) = layout.nodes.get(place + 1) {
                let (from, to, y) = (node.x + node.width - GAP, next.x + GAP, cpu_y + CPU_HEIGHT / 2);
                self.path("sys", 2.0, &format!("M{from} {y}H{to}"));
                self.label("mid small", (node.x + node.width + NODE_GAP / 2, y - 5), "SYS");
            }
        }
        match topology.nvswitch() {
            Some(true) => self.nvswitch(topology, layout, nvlink, gpu_y),
            _ => self.nvlinks(layout, node_top, gpu_y),
        }
        self.y = bottom + MARGIN;
    }

    fn cluster(
        &mut self,
        topology: &Topology,
        cluster: &Cluster,
        [gpu_y, switch_y, nic_y, cpu_y]: [usize; 4],
    ) {
        let below = if cluster.switch.is_some() { switch_y } else { cpu_y };
        for (place, &gpu) in cluster.gpus.iter().enumerate() {
            let (x, middle) = (cluster.gpu_x(place), cluster.gpu_x(place) + GPU_WIDTH / 2);
            self.path("wire", 1.0, &format!("M{middle} {}V{below}", gpu_y + GPU_HEIGHT));
            self.rect("gpu", (x, gpu_y), (GPU_WIDTH, GPU_HEIGHT));
            self.label("mid name", (middle, gpu_y + 17), &format!("GPU{gpu}"));
            if let Some(pci) = topology.devices().get(gpu).and_then(|device| device.pci) {
                self.label("mid small", (middle, gpu_y + 31), &pci.to_string());
            }
        }
        let Some(switch) = cluster.switch else { return };
        let (x, width) = (cluster.x + GAP / 2, cluster.width - GAP);
        let middle = x + width / 2;
        // Between the columns of cards, so that no wire runs through one.
        let way_down = x.saturating_sub(GAP / 2);
        let middle_of_switch = switch_y + SWITCH_HEIGHT / 2;
        self.path("wire", 1.0, &format!("M{x} {middle_of_switch}H{way_down}V{cpu_y}"));
        for (place, &nic) in cluster.nics.iter().enumerate() {
            let (column, row) = (place % cluster.columns(), place / cluster.columns());
            let (x, y) = (cluster.gpu_x(column), nic_y + row * (NIC_HEIGHT + 6));
            let from = if row == 0 { switch_y + SWITCH_HEIGHT } else { y - 6 };
            self.path("wire", 1.0, &format!("M{} {from}V{y}", x + GPU_WIDTH / 2));
            self.nic(topology, nic, (x, y));
        }
        self.rect("switch", (x, switch_y), (width, SWITCH_HEIGHT));
        self.label("mid small", (middle, switch_y + 14), switch);
    }

    fn far_nics(&mut self, topology: &Topology, node: &Node, far_y: usize) {
        let columns = far_columns(node);
        for (place, &nic) in node.nics.iter().enumerate() {
            let (column, row) = (place % columns, place / columns);
            let (x, y) =
                (node.x + GAP + GAP / 2 + column * (GPU_WIDTH + GAP), far_y + row * (NIC_HEIGHT + 6));
            let from = if row == 0 { far_y - GAP } else { y - 6 };
            self.path("wire", 1.0, &format!("M{} {from}V{y}", x + GPU_WIDTH / 2));
            self.nic(topology, nic, (x, y));
        }
    }

    fn nic(&mut self, topology: &Topology, nic: usize, (x, y): (usize, usize)) {
        let Some(nic) = topology.nics().get(nic) else { return };
        self.rect("nic", (x, y), (GPU_WIDTH, NIC_HEIGHT));
        self.label("mid small", (x + GPU_WIDTH / 2, y + 14), &cut(&nic.name, GPU_WIDTH / 6));
    }

    fn nvswitch(&mut self, topology: &Topology, layout: &Layout, y: usize, gpu_y: usize) {
        const HEIGHT: usize = 24;
        let (left, right) = (MARGIN + GAP, layout.width - GAP);
        for cluster in layout.nodes.iter().flat_map(|node| &node.clusters) {
            for (place, &gpu) in cluster.gpus.iter().enumerate() {
                let most = (0..topology.device_count())
                    .filter_map(|peer| topology.link(gpu, peer))
                    .filter(|link| link.kind == LinkKind::NvLink)
                    .map(|link| link.nvlinks)
                    .max();
                let Some(nvlinks) = most else { continue };
                let x = cluster.gpu_x(place) + GPU_WIDTH / 2;
                self.path("nvlink", width_of(nvlinks), &format!("M{x} {}V{gpu_y}", y + HEIGHT));
                self.label("small", (x + 7, y + HEIGHT + 16), &format!("NV{nvlinks}"));
            }
        }
        self.rect("nvswitch", (left, y), (right - left, HEIGHT));
        let _ = writeln!(
            self.text,
            "<text class=\"mid name\" style=\"fill:#fff\" x=\"{}\" y=\"{}\">NVSwitch</text>",
            usize::midpoint(left, right),
            y + 16
        );
    }

    fn nvlinks(&mut self, layout: &Layout, node_top: usize, gpu_y: usize) {
        let lane_y = |lane: usize| node_top - 8 - lane * LANE;
        for line in &layout.lines {
            let y = lane_y(line.lane);
            let path = format!("M{} {gpu_y}V{y}H{}V{gpu_y}", line.from_x, line.to_x);
            self.path("nvlink", width_of(line.nvlinks), &path);
        }
        // Labels last, so that no line runs through one.
        for line in &layout.lines {
            let (x, y) = (usize::midpoint(line.from_x, line.to_x), lane_y(line.lane));
            self.rect("on", (x.saturating_sub(13), y - 6), (26, 12));
            self.label("mid small", (x, y + 3), &format!("NV{}", line.nvlinks));
        }
    }

    fn footer(&mut self, topology: &Topology, width: usize) {
        let order = topology.order();
        let text = format!("order of AllGather and ReduceScatter: {}, because {}", order.order, order.reason);
        for line in wrapped(&text, (width - 2 * MARGIN) / 6) {
            self.label("", (MARGIN, self.y), &line);
            self.y += 15;
        }
    }
}

/// More links, a thicker line.
fn width_of(nvlinks: u32) -> f64 {
    1.0 + f64::from(nvlinks.min(18)) / 6.0
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|line| line.chars().count() + word.chars().count() < most) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
