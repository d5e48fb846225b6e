//! Checks tap names: parsing, display, pattern matching, and order.

use firstdiff_trace::{Site, Tap};

#[test]
fn every_site_survives_display_and_parse() {
    for &site in Site::ALL {
        let tap = Tap { layer: site.in_layer().then_some(12), site };
        assert_eq!(tap.to_string().parse(), Ok(tap));
    }
}

#[test]
fn order_is_the_forward_order() {
    let names = ["h0", "layers.0.attn_norm", "layers.0.h", "layers.2.q", "layers.10.attn_norm", "final_norm", "logits"];
    let taps: Vec<Tap> = names.iter().map(|n| n.parse().unwrap()).collect();
    assert!(taps.is_sorted());
}

#[test]
fn other_names_are_refused() {
    for bad in [
        "",
        "q",
        "layers.q",
        "layers..q",
        "layers.-1.q",
        "layers.01.q",
        "layers.0.logits",
        "layers.0.h0",
        "h1",
        "layers.99999999999.q",
        "layers.0.q.",
        "Layers.0.q",
        "layers.+1.q",
    ] {
        assert!(bad.parse::<Tap>().is_err(), "{bad}");
    }
}

#[test]
fn any_other_name_is_an_open_tap() {
    for (name, layer, stack, role) in [
        ("layers.0.mixer_in", Some(0), "", None),
        ("vision.layers.12.q", Some(12), "vision", Some(Site::Q)),
        ("decoder.layers.3.cross.q", Some(3), "decoder", None),
        ("layers.01.q", None, "", None),
        ("layers.2.", None, "", None),
        (".layers.2.q", None, "", None),
        ("conv out", None, "", None),
        ("a.layers.1.b.layers.2.q", Some(1), "a", None),
    ] {
        let tap = Tap::named(name);
        assert!(tap.is_open() && name.parse::<Tap>().is_err(), "{name}");
        assert_eq!((tap.to_string().as_str(), tap.layer, tap.stack()), (name, layer, stack));
        assert_eq!(Some(tap.role()).filter(|site| !site.is_open()), role, "{name}");
        assert_eq!(tap, Tap::named(name));
    }
    assert_eq!(Tap::named("layers.3.q"), Tap::layer(3, Site::Q));
    assert!(Tap::named("vision.layers.2.q") < Tap::named("vision.layers.10.q"));
}

#[test]
fn the_last_name_and_what_stands_beside() {
    for (name, last, beside, in_layer) in [
        ("layers.3.q", Some(Site::Q), "layers.3.k", "layers.3.k"),
        ("layers.3.mixer_in", None, "layers.3.k", "layers.3.k"),
        ("layers.3.cross.q", Some(Site::Q), "layers.3.cross.k", "layers.3.k"),
        ("vision.layers.1.q", Some(Site::Q), "vision.layers.1.k", "vision.layers.1.k"),
        ("vision.layers.1.a.cross.probs", Some(Site::Probs), "vision.layers.1.a.cross.k", "vision.layers.1.k"),
    ] {
        let tap = Tap::named(name);
        assert_eq!(Some(tap.last_site()).filter(|site| !site.is_open()), last, "{name}");
        assert_eq!([tap.sibling(Site::K), tap.in_same_layer(Site::K)], [beside, in_layer].map(Tap::named), "{name}");
    }
    for (name, last) in
        [("mtp.logits", Some(Site::Logits)), ("q", Some(Site::Q)), ("layers.0.x.qq", None), ("a.", None)]
    {
        let last_site = Tap::named(name).last_site();
        assert_eq!(Some(last_site).filter(|site| !site.is_open()), last, "{name}");
    }
    assert_eq!(Tap::named("layers.0.moe.router_topk").last_name(), "router_topk");
}

#[test]
fn patterns() {
    let tap: Tap = "layers.11.ffn_norm".parse().unwrap();
    for yes in ["*", "layers.*", "*norm", "layers.11.*", "l*s.*.ffn*", "h0, layers.11.ffn_norm"] {
        assert!(tap.matches(yes), "{yes}");
    }
    for no in ["", "layers.1.*", "*.norm", "layers.11", "h0,logits"] {
        assert!(!tap.matches(no), "{no}");
    }
}
