{{- /* The port of an address, as text. */}}
{{- define "nunatak.port" -}}
{{- $url := urlParse . -}}
{{- regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (eq $url.scheme "http" | ternary "80" "443") -}}
{{- end }}
