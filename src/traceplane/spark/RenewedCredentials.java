package traceplane;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URL;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.AwsSessionCredentials;
import software.amazon.awssdk.core.exception.SdkClientException;

/**
 * Credentials of one task for S3 that its worker renews: asked for when they are needed, and again before they expire.
 * All file systems of a JVM that have the same token share them, so that the worker is asked once, not for each file.
 */
public final class RenewedCredentials implements AwsCredentialsProvider {
    private static final Map HELD = new ConcurrentHashMap();
    private static final int MILLISECONDS = 10000;

    private final String url;
    private final String token;

    public RenewedCredentials(URI bucket, Configuration settings) {
        this.url = settings.getTrimmed("fs.s3a.traceplane.renewal.url", "");
        this.token = settings.getTrimmed("fs.s3a.traceplane.renewal.token", "");
    }

    public AwsCredentials resolveCredentials() {
        String key = this.url + " " + this.token;
        Held held = (Held) HELD.get(key);
        if (held == null || System.nanoTime() - held.until > 0) {
            held = ask();
            HELD.put(key, held);
            forgetEnded();
        }
        return held.credentials;
    }

    private Held ask() {
        try {
            HttpURLConnection call = (HttpURLConnection) new URL(this.url).openConnection();
            call.setConnectTimeout(MILLISECONDS);
            call.setReadTimeout(MILLISECONDS);
            call.setRequestProperty("Authorization", "Bearer " + this.token);
            int status = call.getResponseCode();
            if (status != 200) {
                throw SdkClientException.create("No AWS Credentials: the worker answers HTTP " + status);
            }
            BufferedReader lines = new BufferedReader(new InputStreamReader(call.getInputStream(), "UTF-8"));
            try {
                String access = lines.readLine();
                String secret = lines.readLine();
                String session = lines.readLine();
                long seconds = Long.parseLong(lines.readLine());
                return new Held(AwsSessionCredentials.create(access, secret, session), seconds);
            } finally {
                lines.close();
            }
        } catch (IOException error) {
            throw SdkClientException.create("No AWS Credentials: the worker does not answer: " + error, error);
        }
    }

    private static void forgetEnded() {
        java.util.Iterator all = HELD.values().iterator();
        while (all.hasNext()) {
            if (System.nanoTime() - ((Held) all.next()).until > 0) {
                all.remove();
            }
        }
    }

    private static final class Held {
        final AwsCredentials credentials;
        final long until;

        Held(AwsCredentials credentials, long seconds) {
            this.credentials = credentials;
            this.until = System.nanoTime() + seconds * 1000000000L;
        }
    }
}
