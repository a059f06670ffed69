//! Tables, JSON and drawings. Set `BLESS` to write the golden files anew, and look at the difference.

use std::path::{Path, PathBuf};

use flux_topology::Topology;

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

fn case(file: &str) -> Topology {
    Topology::read(&at("cases").join(file)).unwrap()
}

fn check(golden: &str, text: &str) {
    let path = at("golden").join(golden);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{golden}");
}

#[test]
fn golden_files() {
    let cube = case("dgx1v-8-hybrid-cube-mesh.xml");
    check("dgx1v.txt", &cube.report());
    check("dgx1v.json", &cube.to_json());
    check("dgx1v.svg", &cube.to_svg());
    let uneven = case("gpu5-uneven-numa.txt");
    check("gpu5.txt", &uneven.report());
    check("gpu5.json", &uneven.to_json());
    check("gpu5.xml", &uneven.to_nccl_xml());
    let two = Topology::preset("4xl40s-pcie").unwrap().replicated(2).unwrap();
    check("two-machines.txt", &two.report());
    check("dgx-h100.json", &Topology::preset("dgx-h100").unwrap().to_json());
}

#[test]
fn the_json_has_what_programs_rely_on() {
    let json: serde_json::Value = serde_json::from_str(&case("aws-p4d-24xl.xml").to_json()).unwrap();
    assert_eq!(json["gpus"][4]["index"], 4);
    assert_eq!(json["gpus"][4]["bus_id"], "0000:90:1c.0");
    assert_eq!(json["gpus"][4]["numa"], 1);
    assert_eq!(json["pairs"][0][1], "PIX");
    assert_eq!(json["pairs"].as_array().unwrap().len(), 8);
    assert_eq!(json["nics"][2]["near"], serde_json::json!([4, 5]));
    assert!(json["nvswitch"].is_null());
    assert_eq!(json["order"], "two-level");
    assert_eq!(json["warnings"].as_array().unwrap().len(), 1);
}

/// A rectangle with its class.
struct Box {
    class: String,
    x: (f64, f64),
    y: (f64, f64),
}

/// Every drawing is XML, and neither GPUs, cards, switches and CPUs nor texts lie on each other or outside.
#[test]
fn drawings_are_well_formed_and_nothing_overlaps() {
    let cases = std::fs::read_dir(at("cases")).unwrap().map(|entry| entry.unwrap().path());
    let read = cases.filter_map(|path| Some((path.display().to_string(), Topology::read(&path).ok()?)));
    let presets = Topology::presets().map(|name| (name.to_owned(), Topology::preset(name).unwrap()));
    for (name, topology) in read.chain(presets) {
        let svg = topology.to_svg();
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
        let number =
            |node: roxmltree::Node<'_, '_>, key: &str| node.attribute(key).unwrap().parse::<f64>().unwrap();
        let root = document.root_element();
        let (width, height) = (number(root, "width"), number(root, "height"));
        let mut boxes: Vec<Box> = Vec::new();
        let mut texts: Vec<Box> = Vec::new();
        for node in root.children().filter(|node| node.is_element()) {
            let class = node.attribute("class").unwrap_or_default().to_owned();
            match node.tag_name().name() {
                "rect" if ["gpu", "nic", "switch", "cpu", "nvswitch"].contains(&class.as_str()) => {
                    let (x, y) = (number(node, "x"), number(node, "y"));
                    boxes.push(Box {
                        class,
                        x: (x, x + number(node, "width")),
                        y: (y, y + number(node, "height")),
                    });
                }
                "text" => {
                    let size = if class.contains("small") { 9.0 } else { 11.0 };
                    let size = if class.contains("title") { 15.0 } else { size };
                    // What Helvetica needs on average, and a little more.
                    let length = node.text().unwrap_or_default().chars().count() as f64 * size * 0.52;
                    let (x, y) = (number(node, "x"), number(node, "y"));
                    let left = if class.contains("mid") { x - length / 2.0 } else { x };
                    texts.push(Box { class, x: (left, left + length), y: (y - size * 0.7, y) });
                }
                _ => {}
            }
        }
        let overlap = |a: &Box, b: &Box| a.x.0 < b.x.1 && b.x.0 < a.x.1 && a.y.0 < b.y.1 && b.y.0 < a.y.1;
        for list in [&boxes, &texts] {
            for (index, a) in list.iter().enumerate() {
                assert!(
                    a.x.0 >= 0.0 && a.x.1 <= width && a.y.0 >= 0.0 && a.y.1 <= height,
                    "{name}: {} {:?} {:?}",
                    a.class,
                    a.x,
                    a.y
                );
                for b in &list[index + 1..] {
                    assert!(
                        !overlap(a, b),
                        "{name}: {} {:?} {:?} and {} {:?} {:?}",
                        a.class,
                        a.x,
                        a.y,
                        b.class,
                        b.x,
                        b.y
                    );
                }
            }
        }
        if topology.host_count() == 1 {
            assert_eq!(boxes.iter().filter(|a| a.class == "gpu").count(), topology.device_count(), "{name}");
            assert_eq!(boxes.iter().filter(|a| a.class == "nic").count(), topology.nics().len(), "{name}");
        }
    }
}
