//! Defines taps: the vocabulary of names, names outside it, and their parsing, order and display.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

/// A named place in a transformer's forward pass where a tensor can be recorded.
///
/// Vocabulary taps are ordered as a forward pass produces them: `h0`, then layer by layer, then `final_norm` and `logits`. Any other name is an open tap;
/// the operation that produces it, and what that reads, are known only if dump.json gives them.
///
/// ```
/// use firstdiff_trace::{Site, Tap};
/// let tap: Tap = "layers.3.q_rope".parse()?;
/// assert_eq!((tap.layer, tap.site), (Some(3), Site::QRope));
/// assert_eq!(tap.to_string(), "layers.3.q_rope");
/// assert!("layers.2.h".parse::<Tap>()? < tap);
/// let open = Tap::named("vision.layers.7.mixer_in");
/// assert_eq!((open.layer, open.stack(), open.is_open()), (Some(7), "vision", true));
/// assert_eq!(open.to_string(), "vision.layers.7.mixer_in");
/// # Ok::<(), firstdiff_trace::TapError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tap {
    /// The layer, counted from 0; `None` for `h0`, `final_norm` and `logits`.
    pub layer: Option<u32>,
    /// Which tensor.
    pub site: Site,
}

/// Row-major axes of a tap, in the letters T S D H K d F V.
pub type Axes = &'static [char];

macro_rules! sites {
    ($($(#[$doc:meta])* $site:ident $name:literal $in_layer:literal [$($axis:literal),*];)*) => {
        /// The tensors of the vocabulary, in the order a forward pass produces them, and then all others.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Site {
            $($(#[$doc])* $site,)*
            /// A tensor outside the vocabulary.
            Open(OpenName),
        }

        impl Site {
            /// Every site of the vocabulary, in forward order.
            pub const ALL: &'static [Site] = &[$(Site::$site),*];

            /// The name within a tap, without the layer and its prefix.
            pub fn name(self) -> &'static str {
                match self { $(Site::$site => $name,)* Site::Open(name) => &name.0.inner }
            }

            /// Whether the site belongs to a layer.
            pub fn in_layer(self) -> bool {
                match self { $(Site::$site => $in_layer,)* Site::Open(name) => name.0.in_layer }
            }

            /// The axes of the tensor; empty outside the vocabulary.
            pub fn axes(self) -> Axes {
                match self { $(Site::$site => &[$($axis),*],)* Site::Open(_) => &[] }
            }

            /// Whether it is outside the vocabulary.
            pub fn is_open(self) -> bool {
                matches!(self, Site::Open(_))
            }

            /// The vocabulary's site with this name.
            fn parse(name: &str) -> Option<Site> {
                Site::ALL.iter().copied().find(|site| site.name() == name)
            }

            /// The axis of token positions.
            pub fn position_axis(self) -> usize {
                self.axes().iter().position(|axis| *axis == 'T').unwrap_or(0)
            }

            /// Whether it holds keys or values: attention reads them at all positions, through the cache.
            pub fn is_attended(self) -> bool {
                matches!(self, Site::K | Site::KNorm | Site::KRope | Site::V)
            }

            /// Whether the elements of its heads are in the row order of Q and K, which has two variants.
            pub fn has_rope_rows(self) -> bool {
                matches!(self, Site::Q | Site::K | Site::QNorm | Site::KNorm | Site::QRope | Site::KRope)
            }
        }
    };
}

sites! {
    /// Embedding output, after any embedding scale.
    H0 "h0" false ['T', 'D'];
    /// Norm before attention.
    AttnNorm "attn_norm" true ['T', 'D'];
    /// Queries, after bias.
    Q "q" true ['T', 'H', 'd'];
    /// Keys, after bias.
    K "k" true ['T', 'K', 'd'];
    /// Values, after bias.
    V "v" true ['T', 'K', 'd'];
    /// Queries after QK-norm.
    QNorm "q_norm" true ['T', 'H', 'd'];
    /// Keys after QK-norm.
    KNorm "k_norm" true ['T', 'K', 'd'];
    /// Queries after RoPE.
    QRope "q_rope" true ['T', 'H', 'd'];
    /// Keys after RoPE.
    KRope "k_rope" true ['T', 'K', 'd'];
    /// Raw products of queries and keys.
    Qk "qk" true ['H', 'T', 'S'];
    /// Products scaled, capped and masked.
    Scores "scores" true ['H', 'T', 'S'];
    /// Attention probabilities.
    Probs "probs" true ['H', 'T', 'S'];
    /// Probabilities times values, heads merged; the last axis is H*d.
    Context "context" true ['T', 'C'];
    /// Attention after the output projection.
    AttnOut "attn_out" true ['T', 'D'];
    /// Norm after attention (sandwich norms).
    AttnPostNorm "attn_post_norm" true ['T', 'D'];
    /// The residual stream after attention.
    HAttn "h_attn" true ['T', 'D'];
    /// Norm before the feed-forward.
    FfnNorm "ffn_norm" true ['T', 'D'];
    /// Gate projection.
    FfnGate "ffn_gate" true ['T', 'F'];
    /// Up projection.
    FfnUp "ffn_up" true ['T', 'F'];
    /// activation(gate) * up: what the down projection reads.
    FfnAct "ffn_act" true ['T', 'F'];
    /// Router logits (mixture of experts).
    RouterLogits "router_logits" true ['T', 'E'];
    /// Router probabilities (mixture of experts).
    RouterProbs "router_probs" true ['T', 'E'];
    /// Down projection.
    FfnOut "ffn_out" true ['T', 'D'];
    /// Norm after the feed-forward (sandwich norms).
    FfnPostNorm "ffn_post_norm" true ['T', 'D'];
    /// The residual stream after the layer.
    H "h" true ['T', 'D'];
    /// Norm before the head.
    FinalNorm "final_norm" false ['T', 'D'];
    /// Logits.
    Logits "logits" false ['T', 'V'];
}

/// The name of a tensor outside the vocabulary, without the layer number. Each is stored once, for the life of the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenName(&'static OpenNameParts);

/// `vision.layers.N.cross.q`: the stack `vision`, and `cross.q` inside the layer.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct OpenNameParts {
    stack: String,
    in_layer: bool,
    inner: String,
}

impl OpenName {
    fn new(stack: &str, in_layer: bool, inner: &str) -> OpenName {
        static KNOWN: Mutex<BTreeMap<(String, bool, String), &'static OpenNameParts>> = Mutex::new(BTreeMap::new());
        let (stack, inner) = (stack.to_owned(), inner.to_owned());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = known.entry((stack.clone(), in_layer, inner.clone()));
        OpenName(entry.or_insert_with(|| Box::leak(Box::new(OpenNameParts { stack, in_layer, inner }))))
    }
}

impl fmt::Debug for OpenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.inner)
    }
}

/// Why a name is not a tap.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a tap name (h0, layers.N.q, logits ...)")]
pub struct TapError(pub String);

impl Tap {
    /// A tap outside the layers.
    ///
    /// # Errors
    /// When `site` belongs to a layer.
    pub fn outer(site: Site) -> Result<Tap, TapError> {
        if site.in_layer() { Err(TapError(site.name().into())) } else { Ok(Tap { layer: None, site }) }
    }

    /// A tap of layer `layer`.
    pub const fn layer(layer: u32, site: Site) -> Tap {
        Tap { layer: Some(layer), site }
    }

    /// The tap of any name: the vocabulary's if it has it, else an open one. `layers.N` in it is the layer, and the text before that the stack.
    pub fn named(name: &str) -> Tap {
        name.parse().unwrap_or_else(|_| {
            let whole = || Tap { layer: None, site: Site::Open(OpenName::new("", false, name)) };
            let (stack, rest) = match name.split_once(".layers.") {
                Some((stack, rest)) if !stack.is_empty() => (stack, rest),
                _ => match name.strip_prefix("layers.") {
                    Some(rest) => ("", rest),
                    None => return whole(),
                },
            };
            let Some((layer, inner)) = rest.split_once('.') else { return whole() };
            match layer_number(layer).filter(|_| !inner.is_empty()) {
                Some(layer) => Tap { layer: Some(layer), site: Site::Open(OpenName::new(stack, true, inner)) },
                None => whole(),
            }
        })
    }

    /// Whether it is outside the vocabulary.
    pub fn is_open(&self) -> bool {
        self.site.is_open()
    }

    /// The text before `layers.N`: `vision` of `vision.layers.3.q`. Empty for the vocabulary's own names.
    pub fn stack(&self) -> &'static str {
        match self.site {
            Site::Open(name) => &name.0.stack,
            _ => "",
        }
    }

    /// Its stack and layer: layers of different stacks may have the same number.
    pub fn block(&self) -> Option<(&'static str, u32)> {
        Some((self.stack(), self.layer?))
    }

    /// Its name with other text in place of the layer number: `vision.layers.0-2.q`. Unchanged if it has no layer.
    pub fn in_layers(&self, layers: &str) -> String {
        let (stack, name) = (self.stack(), self.site.name());
        match (self.layer, stack) {
            (None, _) => name.to_owned(),
            (_, "") => format!("layers.{layers}.{name}"),
            _ => format!("{stack}.layers.{layers}.{name}"),
        }
    }

    /// The vocabulary's site with the same name in a layer, if the tap is in another stack: `q` of `vision.layers.3.q`.
    pub fn role(&self) -> Site {
        match self.site {
            Site::Open(name) if name.0.in_layer => {
                Site::parse(&name.0.inner).filter(|site| site.in_layer()).unwrap_or(self.site)
            }
            site => site,
        }
    }

    /// The part after the last dot of its name: `q` of `vision.layers.3.cross.q`.
    pub fn last_name(&self) -> &'static str {
        let name = self.site.name();
        name.rsplit_once('.').map_or(name, |(_, last)| last)
    }

    /// The vocabulary's site with whose name its own ends: `q` of `vision.layers.3.cross.q`. Its own site if there is none.
    pub fn last_site(&self) -> Site {
        if self.is_open() { Site::parse(self.last_name()).unwrap_or(self.site) } else { self.site }
    }

    /// The tap of another site in the same stack and layer.
    pub fn in_same_layer(&self, site: Site) -> Tap {
        self.with_inner("", site)
    }

    /// The tap of another site in the same attention or block: `vision.layers.3.cross.k` for `vision.layers.3.cross.q`.
    pub fn sibling(&self, site: Site) -> Tap {
        match self.site {
            Site::Open(name) => self.with_inner(name.0.inner.rsplit_once('.').map_or("", |(block, _)| block), site),
            _ => self.with_inner("", site),
        }
    }

    /// The tap of a site inside a block of the same stack and layer.
    fn with_inner(&self, block: &str, site: Site) -> Tap {
        let open = |stack: &str, inner: &str| Site::Open(OpenName::new(stack, true, inner));
        let site = match self.site {
            Site::Open(name) if name.0.in_layer && !block.is_empty() => {
                open(&name.0.stack, &format!("{block}.{}", site.name()))
            }
            Site::Open(name) if name.0.in_layer && !name.0.stack.is_empty() => open(&name.0.stack, site.name()),
            _ => site,
        };
        Tap { layer: self.layer, site }
    }

    fn key(&self) -> (u32, Option<&'static str>, u64, Site) {
        let layer = self.layer.map_or(0, u64::from);
        match (self.layer, self.site) {
            (None, Site::H0) => (0, None, layer, Site::H0),
            (None, Site::Open(_)) => (3, None, layer, self.site),
            (None, site) => (2, None, layer, site),
            (Some(_), site) if self.stack().is_empty() => (1, None, layer, site),
            (Some(_), site) => (4, Some(self.stack()), layer, site),
        }
    }

    /// Whether `pattern` matches this tap.
    ///
    /// `*` stands for any run of characters; several patterns are separated by commas.
    ///
    /// ```
    /// # use firstdiff_trace::Tap;
    /// let tap: Tap = "layers.3.q_rope".parse()?;
    /// assert!(tap.matches("layers.*.q*"));
    /// assert!(tap.matches("h0,layers.3.*"));
    /// assert!(!tap.matches("logits"));
    /// # Ok::<(), firstdiff_trace::TapError>(())
    /// ```
    pub fn matches(&self, pattern: &str) -> bool {
        matches(&self.to_string(), pattern)
    }
}

/// A layer number in a name: digits without leading zeros.
fn layer_number(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    text.parse().ok().filter(|_| plain && canonical)
}

/// Whether a name matches one of the comma-separated patterns, as in [`Tap::matches`].
pub(crate) fn matches(name: &str, pattern: &str) -> bool {
    pattern.split(',').any(|p| glob(p.trim().as_bytes(), name.as_bytes()))
}

/// `*` matches any run of bytes. Linear in practice: only one backtrack point.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((sp, st)) = star {
            star = Some((sp, st + 1));
            p = sp + 1;
            t = st + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&b| b == b'*')
}

impl PartialOrd for Tap {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Tap {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl fmt::Display for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_layers(&self.layer.map_or(String::new(), |layer| layer.to_string())))
    }
}

impl FromStr for Tap {
    type Err = TapError;

    fn from_str(name: &str) -> Result<Tap, TapError> {
        let err = || TapError(name.into());
        let (layer, site_name) = match name.strip_prefix("layers.") {
            Some(rest) => {
                let (number, site) = rest.split_once('.').ok_or_else(err)?;
                (Some(layer_number(number).ok_or_else(err)?), site)
            }
            None => (None, name),
        };
        let site = Site::parse(site_name).ok_or_else(err)?;
        if site.in_layer() != layer.is_some() {
            return Err(err());
        }
        Ok(Tap { layer, site })
    }
}
